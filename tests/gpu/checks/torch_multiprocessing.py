"""torch.multiprocessing: CUDA tensors go to other processes by queue and by pipe, and both sides see what either writes."""

import torch
import torch.multiprocessing as mp
from say import attempts, same


def consumer(requests, answers):
    """Writes into what it gets, and says what it found."""
    while (tensor := requests.get()) is not None:
        answers.put((tensor.sum().item(), tuple(tensor.shape), str(tensor.dtype)))
        tensor.mul_(2)
        torch.cuda.synchronize()
        answers.put("written")
        del tensor
    answers.put("done")


def producer(answers, release):
    """Sends tensors that it has just computed: the process that gets them must wait for the GPU."""
    tensors = []
    for n in range(4):
        x = torch.full((1 << 20,), float(n), device="cuda")
        for _ in range(20):
            x = x * 1.5 + 1
        tensors.append(x)
        answers.put(x)
    release.wait()


def adder(tensor, rounds, barrier):
    for _ in range(rounds):
        barrier.wait()
        tensor.add_(1)
        torch.cuda.synchronize()
        barrier.wait()


def started(target, *arguments):
    process = mp.get_context("spawn").Process(target=target, args=arguments)
    process.start()
    return process


def finished(process):
    process.join(120)
    same(f"exit-of-{process.name.split('-')[0]}", process.exitcode)


def a_queue_of_tensors():
    context = mp.get_context("spawn")
    requests, answers = context.Queue(), context.Queue()
    process = started(consumer, requests, answers)
    sent = [torch.arange(1 << 16, device="cuda", dtype=torch.int64), torch.ones(3, 5, device="cuda"), torch.rand(100, device="cuda").round()]
    sent.append(torch.arange(10_000_000, device="cuda", dtype=torch.int32).view(100, -1)[3:7])
    for n, tensor in enumerate(sent):
        requests.put(tensor)
        if n != 2:
            same(f"found-{n}", answers.get())
        else:
            answers.get()
        same(f"written-{n}", answers.get())
    requests.put(None)
    same("last", answers.get())
    finished(process)
    return [sent[0], sent[1], sent[3]]


def results_of_another_process():
    context = mp.get_context("spawn")
    answers, release = context.Queue(), context.Event()
    process = started(producer, answers, release)
    found = [answers.get().clone() for _ in range(4)]
    torch.cuda.synchronize()
    release.set()
    finished(process)
    return found


def turns():
    """Two processes add to one tensor, in turns."""
    rounds = 20
    barrier = mp.get_context("spawn").Barrier(2)
    tensor = torch.zeros(1 << 18, device="cuda")
    process = started(adder, tensor, rounds, barrier)
    for n in range(rounds):
        barrier.wait()
        barrier.wait()
        same(f"round-{n}", tensor[n].item())
        tensor.mul_(1.5)
        torch.cuda.synchronize()
    finished(process)
    return tensor


def a_shared_model():
    model = torch.nn.Linear(64, 64, device="cuda")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(0.25)
    model.share_memory()
    barrier = mp.get_context("spawn").Barrier(2)
    process = started(adder, model.weight.data, 3, barrier)
    for _ in range(3):
        barrier.wait()
        barrier.wait()
    finished(process)
    return model.weight


if __name__ == "__main__":
    attempts(a_queue_of_tensors, results_of_another_process, turns, a_shared_model)
