// The CCCL's own algorithms: sort, sort by key, scan, reduce, unique, histogram and select, as thrust and as cub.
#include "check.h"

#include <algorithm>
#include <cub/cub.cuh>
#include <numeric>
#include <thrust/device_vector.h>
#include <thrust/reduce.h>
#include <thrust/scan.h>
#include <thrust/sort.h>
#include <thrust/transform.h>
#include <thrust/unique.h>

struct IsEven {
    __host__ __device__ bool operator()(int x) const { return x % 2 == 0; }
};

template <typename Call>
void cub_call(Call call) {
    size_t bytes = 0;
    CUDA(call(nullptr, bytes));
    Device<char> scratch(bytes + 1);
    CUDA(call(scratch.data, bytes));
}

int main() {
    const int n = 20000;
    Numbers numbers;
    std::vector<int> host(n);
    for (auto &x : host) x = int(numbers.next() >> 12) - 500000;
    auto sorted = host;
    std::sort(sorted.begin(), sorted.end());

    thrust::device_vector<int> device(host.begin(), host.end());
    thrust::sort(device.begin(), device.end());
    std::vector<int> back(n);
    thrust::copy(device.begin(), device.end(), back.begin());
    EXPECT(back == sorted, "thrust::sort");

    thrust::device_vector<int> small(host.begin(), host.end());
    thrust::transform(small.begin(), small.end(), small.begin(), [] __device__(int x) { return (x % 10 + 10) % 10; });
    thrust::device_vector<int> prefix(n);
    thrust::exclusive_scan(small.begin(), small.end(), prefix.begin());
    thrust::copy(prefix.begin(), prefix.end(), back.begin());
    std::vector<int> digits(n), expected(n);
    for (int i = 0; i < n; i++) digits[i] = (host[i] % 10 + 10) % 10;
    std::exclusive_scan(digits.begin(), digits.end(), expected.begin(), 0);
    EXPECT(back == expected, "thrust::exclusive_scan");
    int total = thrust::reduce(small.begin(), small.end());
    EXPECT(total == std::accumulate(digits.begin(), digits.end(), 0), "thrust::reduce is %d", total);
    thrust::sort(small.begin(), small.end());
    auto end = thrust::unique(small.begin(), small.end());
    EXPECT(end - small.begin() == 10, "thrust::unique leaves %d", int(end - small.begin()));

    Device<int> keys(host), keys_out(n), chosen(n), count(1);
    std::vector<int> order(n);
    std::iota(order.begin(), order.end(), 0);
    Device<int> values(order), values_out(n);
    cub_call([&](void *scratch, size_t &bytes) {
        return cub::DeviceRadixSort::SortPairs(scratch, bytes, keys.data, keys_out.data, values.data, values_out.data, n);
    });
    EXPECT(keys_out.host() == sorted, "cub sort: keys");
    auto permutation = values_out.host();
    for (int i = 0; i < n; i++) EXPECT(host[permutation[i]] == sorted[i], "cub sort: value %d", i);

    cub_call([&](void *scratch, size_t &bytes) {
        return cub::DeviceSelect::If(scratch, bytes, keys.data, chosen.data, count.data, n, IsEven());
    });
    std::vector<int> even;
    std::copy_if(host.begin(), host.end(), std::back_inserter(even), IsEven());
    EXPECT(count.host()[0] == int(even.size()), "cub select: %d of %zu", count.host()[0], even.size());
    auto got = chosen.host();
    EXPECT(std::equal(even.begin(), even.end(), got.begin()), "cub select: order");

    Device<int> histogram(10);
    Device<int> bins(digits);
    cub_call([&](void *scratch, size_t &bytes) {
        return cub::DeviceHistogram::HistogramEven(scratch, bytes, bins.data, histogram.data, 11, 0, 10, n);
    });
    auto counts = histogram.host();
    for (int i = 0; i < 10; i++)
        EXPECT(counts[i] == std::count(digits.begin(), digits.end(), i), "bin %d has %d", i, counts[i]);
    return done();
}
