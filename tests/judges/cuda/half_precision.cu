// fp16 and bf16: conversions with every rounding, packed arithmetic, comparisons and the special values.
#include "check.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

__global__ void halves(const float *in, float *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    __half a = __float2half_rn(in[i]), b = __float2half_rn(in[(i + 1) % n]);
    __half2 pair = __halves2half2(a, b);
    float *mine = out + i * 6;
    mine[0] = __half2float(__hadd(a, b));
    mine[1] = __half2float(__hmul(a, b));
    mine[2] = __high2float(__hfma2(pair, pair, __float2half2_rn(1.0f)));
    mine[3] = __hlt(a, b);
    mine[4] = __half2float(hexp(__hmul(a, __float2half(0.125f))));
    __nv_bfloat16 c = __float2bfloat16_rn(in[i]);
    mine[5] = __bfloat162float(__hadd(c, c));
}

__global__ void specials(float *out) {
    out[0] = __half2float(__float2half_rn(65520.0f));
    out[1] = __half2float(__float2half_rz(65535.0f));
    out[2] = __half2float(__float2half_rn(5.9604645e-8f));
    out[3] = __half2float(__float2half_rn(2.9802322e-8f));
    out[4] = __half2float(__float2half_ru(1e-9f));
    out[5] = __hisnan(__float2half_rn(NAN));
    out[6] = __half2float(__float2half_rn(2049.0f));
    out[7] = __half2float(__float2half_rn(2051.0f));
}

int main() {
    const int n = 512;
    Numbers numbers;
    std::vector<float> in(n);
    for (auto &x : in) x = numbers.unit() * 16 - 8;
    Device<float> device(in), out(n * 6);
    halves<<<2, 256>>>(device.data, out.data, n);
    auto got = out.host();
    for (int i = 0; i < n; i++) {
        __half ha = __float2half(in[i]), hb = __float2half(in[(i + 1) % n]);
        float a = __half2float(ha), b = __half2float(hb);
        auto rounded = [](double x) { return __half2float(__double2half(x)); };
        float expected[] = {rounded(double(a) + b), rounded(double(a) * b), rounded(double(b) * b + 1.0), float(a < b)};
        for (int k = 0; k < 4; k++) EXPECT(got[i * 6 + k] == expected[k], "case %d of %d: %g, not %g", k, i, got[i * 6 + k], expected[k]);
        float e = std::exp(rounded(a * 0.125));
        EXPECT(std::fabs(got[i * 6 + 4] - e) <= e * 2e-3f, "exp of %g is %g", a, got[i * 6 + 4]);
        float c = __bfloat162float(__float2bfloat16(in[i]));
        EXPECT(got[i * 6 + 5] == 2 * c, "bf16 %d: %g", i, got[i * 6 + 5]);
    }
    Device<float> special(8);
    specials<<<1, 1>>>(special.data);
    auto s = special.host();
    EXPECT(std::isinf(s[0]) && s[1] == 65504 && s[2] == 5.9604645e-8f && s[3] == 0 && s[4] == 5.9604645e-8f, "range: %g %g %g %g %g",
           s[0], s[1], s[2], s[3], s[4]);
    EXPECT(s[5] == 1 && s[6] == 2048 && s[7] == 2052, "%g %g %g", s[5], s[6], s[7]);
    return done();
}
