#!/bin/sh
# Makes the images of this folder from sample.cu. They were made with nvcc 13.4; other versions differ in bytes.
set -eu
cd "$(dirname "$0")"
for mode in none size speed balance; do
    nvcc -fatbin -arch=compute_90 -code=compute_90 --compress-mode=$mode sample.cu -o ptx-$mode.fatbin
done
nvcc -fatbin -gencode arch=compute_90a,code=compute_90a -gencode arch=compute_100f,code=compute_100f \
    sample.cu -o ptx-specific.fatbin
nvcc -fatbin -gencode arch=compute_90,code=sm_90 -gencode arch=compute_90,code=compute_90 --compress-mode=size \
    sample.cu -o pair-size.fatbin
nvcc -fatbin -gencode arch=compute_75,code=sm_75 -gencode arch=compute_80,code=sm_80 \
    -gencode arch=compute_86,code=sm_86 -gencode arch=compute_90,code=sm_90 -gencode arch=compute_90a,code=sm_90a \
    -gencode arch=compute_100,code=sm_100 -gencode arch=compute_90,code=compute_90 \
    -gencode arch=compute_80,code=compute_80 sample.cu -o many.fatbin
nvcc -fatbin -gencode arch=compute_100f,code=sm_100f -gencode arch=compute_103a,code=sm_103a \
    -gencode arch=compute_120,code=sm_120 sample.cu -o family.fatbin
nvcc -cubin -arch=sm_90 sample.cu -o sample.cubin
