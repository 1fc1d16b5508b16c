// The maths library in double and single precision, against the CPU's, within the bounds that CUDA documents.
#include "check.h"

#include <algorithm>
#include <limits>
#include <string>

#define FUNCTIONS(F)                                                                                        \
    F(sin, 2) F(cos, 2) F(tan, 2) F(exp, 1) F(exp2, 1) F(expm1, 1) F(log, 1) F(log2, 1) F(log10, 1)          \
    F(log1p, 1) F(sqrt, 0) F(cbrt, 1) F(asin, 2) F(acos, 2) F(atan, 2) F(sinh, 2) F(cosh, 1) F(tanh, 1)      \
    F(asinh, 3) F(erf, 2) F(erfc, 5) F(tgamma, 10) F(lgamma, 0) F(floor, 0) F(ceil, 0) F(trunc, 0)            \
    F(rint, 0) F(round, 0) F(fabs, 0)

enum Which {
#define NAME(f, ulps) which_##f,
    FUNCTIONS(NAME)
#undef NAME
        count
};

template <typename T>
__global__ void evaluate(const T *in, T *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    T x = in[i];
#define CALL(f, ulps) out[which_##f * n + i] = f(x);
    FUNCTIONS(CALL)
#undef CALL
}

// Functions of two arguments, and the operations that must be exact to the last bit.
__global__ void exact(const double *a, const double *b, double *out, int n) {
    int i = threadIdx.x;
    double *mine = out + i * 12;
    mine[0] = a[i] / b[i];
    mine[1] = fma(a[i], b[i], 0.1);
    mine[2] = fmod(a[i], b[i]);
    mine[3] = remainder(a[i], b[i]);
    mine[4] = copysign(a[i], -b[i]);
    mine[5] = __dadd_ru(a[i], b[i]) - __dadd_rd(a[i], b[i]);
    mine[6] = float(a[i]) / float(b[i]);
    mine[7] = (long long)(a[i] * 1e6);
    mine[8] = pow(fabs(a[i]), b[i]);
    mine[9] = atan2(a[i], b[i]);
    mine[10] = hypot(a[i], b[i]);
    int exponent;
    double fraction = frexp(a[i], &exponent);
    mine[11] = fraction + exponent * 100;
}

template <typename T>
void compare(const std::vector<T> &in) {
    int n = int(in.size());
    Device<T> device(in), out(size_t(count) * n);
    evaluate<T><<<(n + 127) / 128, 128>>>(device.data, out.data, n);
    auto got = out.host();
    auto check = [&](const char *name, int which, double ulps, auto reference) {
        for (int i = 0; i < n; i++) {
            T expected = reference(in[i]), value = got[size_t(which) * n + i];
            if (std::isnan(expected)) {
                EXPECT(std::isnan(value), "%s(%g) is %g, not NaN", name, double(in[i]), double(value));
                continue;
            }
            if (expected == value) continue;
            // One unit more on each side for the CPU's own error; lgamma has no bound near its zeros.
            double unit = std::max(double(std::numeric_limits<T>::epsilon()) * std::fabs(double(expected)),
                                   double(std::numeric_limits<T>::denorm_min()));
            double bound = (ulps == 0 ? 0 : (ulps + 4) * unit);
            if (std::string(name) == "lgamma") bound = 16 * unit + 16 * double(std::numeric_limits<T>::epsilon());
            EXPECT(std::fabs(double(value) - double(expected)) <= bound, "%s(%.17g) is %.17g, not %.17g", name, double(in[i]),
                   double(value), double(expected));
        }
    };
#define CHECK(f, ulps) check(#f, which_##f, ulps, [](T x) { return std::f(x); });
    FUNCTIONS(CHECK)
#undef CHECK
}

int main() {
    Numbers numbers;
    std::vector<double> doubles = {0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1e-300, 1e-310, 700.0, INFINITY, -INFINITY, NAN, 2.5, -2.5, 3.5};
    std::vector<float> floats = {0.0f, -0.0f, 1.0f, -1.0f, 0.5f, 1e-40f, 80.0f, INFINITY, -INFINITY, NAN, 2.5f, 1.5f};
    for (int i = 0; i < 400; i++) {
        doubles.push_back(numbers.unit() * 2 - 1);
        doubles.push_back(numbers.unit() * 40 - 20);
        floats.push_back(numbers.unit() * 2 - 1);
        floats.push_back(numbers.unit() * 20 - 10);
    }
    compare(doubles);
    compare(floats);

    const int n = 256;
    std::vector<double> a(n), b(n);
    for (int i = 0; i < n; i++) a[i] = numbers.unit() * 100 - 50, b[i] = numbers.unit() * 10 - 5 + 1e-3;
    Device<double> da(a), db(b), out(n * 12);
    exact<<<1, n>>>(da.data, db.data, out.data, n);
    auto got = out.host();
    for (int i = 0; i < n; i++) {
        const double *mine = &got[i * 12];
        int exponent;
        double fraction = std::frexp(a[i], &exponent);
        EXPECT(mine[0] == a[i] / b[i], "division %d", i);
        EXPECT(mine[1] == std::fma(a[i], b[i], 0.1), "fma %d", i);
        EXPECT(mine[2] == std::fmod(a[i], b[i]), "fmod %d: %.17g, not %.17g", i, mine[2], std::fmod(a[i], b[i]));
        EXPECT(mine[3] == std::remainder(a[i], b[i]), "remainder %d", i);
        EXPECT(mine[4] == std::copysign(a[i], -b[i]), "copysign %d", i);
        EXPECT(mine[5] >= 0 && mine[5] <= std::fabs(a[i] + b[i]) * 4.5e-16, "directed rounding %d: %g", i, mine[5]);
        EXPECT(mine[6] == float(a[i]) / float(b[i]), "float division %d", i);
        EXPECT(mine[7] == (long long)(a[i] * 1e6), "to integer %d", i);
        double p = std::pow(std::fabs(a[i]), b[i]), t = std::atan2(a[i], b[i]), h = std::hypot(a[i], b[i]);
        EXPECT(std::fabs(mine[8] - p) <= p * 1e-15, "pow %d: %.17g, not %.17g", i, mine[8], p);
        EXPECT(std::fabs(mine[9] - t) <= std::fabs(t) * 1e-15, "atan2 %d", i);
        EXPECT(std::fabs(mine[10] - h) <= h * 1e-15, "hypot %d", i);
        EXPECT(mine[11] == fraction + exponent * 100, "frexp %d", i);
    }
    return done();
}
