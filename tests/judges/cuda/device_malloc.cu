// malloc and free on the device: across launches, until the heap is full, and its size from the host.
#include "check.h"

struct Node {
    int value;
    Node *next;
};

__global__ void build(Node **lists, int length) {
    Node *head = nullptr;
    for (int i = 0; i < length; i++) {
        Node *node = static_cast<Node *>(malloc(sizeof(Node)));
        if (node == nullptr) break;
        node->value = i + threadIdx.x;
        node->next = head;
        head = node;
    }
    lists[threadIdx.x] = head;
}

__global__ void total_and_free(Node **lists, int *sums) {
    int sum = 0;
    for (Node *node = lists[threadIdx.x]; node != nullptr;) {
        sum += node->value;
        Node *next = node->next;
        free(node);
        node = next;
    }
    sums[threadIdx.x] = sum;
}

__global__ void exhaust(int *got) {
    char *last = nullptr;
    int count = 0;
    for (int i = 0; i < 64; i++) {
        char *piece = static_cast<char *>(malloc(1 << 20));
        if (piece == nullptr) break;
        *reinterpret_cast<char **>(piece) = last;
        last = piece;
        count++;
    }
    while (last != nullptr) {
        char *next = *reinterpret_cast<char **>(last);
        free(last);
        last = next;
    }
    *got = count;
}

int main() {
    CUDA(cudaDeviceSetLimit(cudaLimitMallocHeapSize, 16 << 20));
    size_t limit = 0;
    CUDA(cudaDeviceGetLimit(&limit, cudaLimitMallocHeapSize));
    EXPECT(limit >= 16 << 20, "the heap limit is %zu", limit);

    const int threads = 64, length = 20;
    Device<Node *> lists(threads);
    Device<int> sums(threads);
    build<<<1, threads>>>(lists.data, length);
    CUDA(cudaDeviceSynchronize());
    total_and_free<<<1, threads>>>(lists.data, sums.data);
    auto got = sums.host();
    for (int i = 0; i < threads; i++) EXPECT(got[i] == 190 + 20 * i, "sum %d is %d", i, got[i]);

    // Twice: what the first launch freed must be there for the second.
    Device<int> count(1);
    int before = 0;
    for (int round = 0; round < 2; round++) {
        exhaust<<<1, 1>>>(count.data);
        int pieces = count.host()[0];
        EXPECT(pieces >= 8 && pieces <= 16, "a 16 MiB heap gave %d MiB", pieces);
        EXPECT(round == 0 || pieces == before, "round 2 gave %d after %d", pieces, before);
        before = pieces;
    }
    return done();
}
