// The scalar meaning of HLO's element-wise ops on compute types (see types.cuh), as XLA defines them.
//
// One function per op: hlo_add(a, b), hlo_exp(x) ...; both operands have the same type and the result has it
// too (hlo_is_finite gives bool).  f16, bf16 and f8 values are computed as float; the emitted text rounds
// each result with round_to<T>.  Integers wrap around, narrow ones at their own width.  Compile with
// --fmad=false (g++: -ffp-contract=off) and without fast math: every + - * / sqrt rounds once.
#ifndef ASTITCH_HLO_MATH_CUH
#define ASTITCH_HLO_MATH_CUH

#include "types.cuh"

// The C library's functions: NVRTC declares them itself, g++ has them as built-ins without <math.h>, whose
// inclusion would double the time of a host compilation.
#ifdef ASTITCH_HOST
#define ASTITCH_LIBM(function) __builtin_##function
#else
#define ASTITCH_LIBM(function) function
#endif

// ---- integer pieces ---------------------------------------------------------------------------------

template <class T> constexpr int bits_in = int(sizeof(T)) * 8;

// Unsigned type in which integer arithmetic of T is done: wide enough that C++ does not promote it to int.
template <class T> using arithmetic_of = choose<(sizeof(T) > 4), unsigned long long, unsigned int>;

// Smallest value of a signed integer type.
template <class T> __device__ __forceinline__ constexpr T smallest_of()
{
    return is_signed_integer<T> ? T(1ull << (bits_in<T> - 1)) : T(0);
}
template <class T> __device__ __forceinline__ constexpr T largest_of()
{
    return is_signed_integer<T> ? T((1ull << (bits_in<T> - 1)) - 1) : T(~0ull);
}

// ---- arithmetic -------------------------------------------------------------------------------------

// Integers wrap; pred: or.
template <class T> __device__ __forceinline__ T hlo_add(T a, T b)
{
    if constexpr (is_pred<T>) return a || b;
    else if constexpr (is_integer<T>) return T(arithmetic_of<T>(a) + arithmetic_of<T>(b));
    else return a + b;
}

// Integers wrap; pred: xor.
template <class T> __device__ __forceinline__ T hlo_subtract(T a, T b)
{
    if constexpr (is_pred<T>) return a != b;
    else if constexpr (is_integer<T>) return T(arithmetic_of<T>(a) - arithmetic_of<T>(b));
    else return a - b;
}

// Integers wrap; pred: and.
template <class T> __device__ __forceinline__ T hlo_multiply(T a, T b)
{
    if constexpr (is_pred<T>) return a && b;
    else if constexpr (is_integer<T>) return T(arithmetic_of<T>(a) * arithmetic_of<T>(b));
    else return a * b;
}

// x/0 = -1 (all bits set), smallest / -1 = smallest.
template <class T> __device__ __forceinline__ T hlo_divide(T a, T b)
{
    if constexpr (is_integer<T>) {
        if (b == 0) return T(-1);
        if constexpr (is_signed_integer<T>) {
            if (b == -1) return T(arithmetic_of<T>(0) - arithmetic_of<T>(a));
        }
        return T(a / b);
    } else {
#ifndef ASTITCH_HOST
        if constexpr (is_same<T, float>) { // within 2 ulp over the whole range, as XLA divides; IEEE's costs twice as much
            float quotient;
            asm("div.full.f32 %0, %1, %2;" : "=f"(quotient) : "f"(a), "f"(b));
            return quotient;
        }
#endif
        return a / b;
    }
}

// The sign of the dividend; x % 0 = x, smallest % -1 = 0.
template <class T> __device__ __forceinline__ T hlo_remainder(T a, T b)
{
    if constexpr (is_integer<T>) {
        if (b == 0) return a;
        if constexpr (is_signed_integer<T>) {
            if (b == -1) return 0;
        }
        return T(a % b);
    } else if constexpr (is_same<T, float>) {
        return ASTITCH_LIBM(fmodf)(a, b);
    } else {
        return ASTITCH_LIBM(fmod)(a, b);
    }
}

template <class T> __device__ __forceinline__ T hlo_negate(T x)
{
    if constexpr (is_integer<T>) return T(arithmetic_of<T>(0) - arithmetic_of<T>(x));
    else return -x;
}

// |smallest| = smallest.
template <class T> __device__ __forceinline__ T hlo_abs(T x)
{
    if constexpr (is_signed_integer<T>) return x < 0 ? hlo_negate(x) : x;
    else if constexpr (is_unsigned_integer<T> || is_pred<T>) return x;
    else if constexpr (is_same<T, float>) return ASTITCH_LIBM(fabsf)(x);  // a modifier of the instruction that reads it
    else return same_bits<T>(bits_of(x) & (~unsigned_of<T>(0) >> 1));
}

// -1, 0 or 1; of a float: NaN and both zeros stay what they are.
template <class T> __device__ __forceinline__ T hlo_sign(T x)
{
    if constexpr (is_wide_float<T>) return x > 0 ? T(1) : x < 0 ? T(-1) : x;
    else if constexpr (is_signed_integer<T>) return T((x > 0) - (x < 0));
    else return T(x != 0);
}

// NaN wins; +0 is larger than -0; pred: or.
template <class T> __device__ __forceinline__ T hlo_maximum(T a, T b)
{
    if constexpr (is_wide_float<T>) {
        if (a != a) return a;
        if (a == b) return bits_of(a) < bits_of(b) ? a : b;  // the sign bit decides between the zeros
    }
    return a > b ? a : b;
}

// NaN wins; -0 is smaller than +0; pred: and.
template <class T> __device__ __forceinline__ T hlo_minimum(T a, T b)
{
    if constexpr (is_wide_float<T>) {
        if (a != a) return a;
        if (a == b) return bits_of(a) > bits_of(b) ? a : b;
    }
    return a < b ? a : b;
}

#if !defined(ASTITCH_HOST) && __CUDA_ARCH__ >= 800
// The same in one instruction.
__device__ __forceinline__ float hlo_maximum(float a, float b)
{
    float result;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(a), "f"(b));
    return result;
}
__device__ __forceinline__ float hlo_minimum(float a, float b)
{
    float result;
    asm("min.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(a), "f"(b));
    return result;
}
#endif

// low wins over x, high wins over low; NaN anywhere gives NaN.
template <class T> __device__ __forceinline__ T hlo_clamp(T low, T x, T high)
{
    return hlo_minimum(hlo_maximum(low, x), high);
}

// The parts of a number that is not complex; complex.cuh has the others.
template <class T> __device__ __forceinline__ T hlo_real(T x) { return x; }
template <class T> __device__ __forceinline__ T hlo_imag(T) { return T(0); }

// ---- bits -------------------------------------------------------------------------------------------

template <class T> __device__ __forceinline__ T hlo_and(T a, T b) { return T(a & b); }
template <class T> __device__ __forceinline__ T hlo_or(T a, T b) { return T(a | b); }
template <class T> __device__ __forceinline__ T hlo_xor(T a, T b) { return T(a ^ b); }
template <class T> __device__ __forceinline__ T hlo_not(T x)
{
    if constexpr (is_pred<T>) return !x;
    else return T(~x);
}

// Shift amounts are read as unsigned; one of the width or more gives 0 (arithmetic: the sign everywhere).
template <class T> __device__ __forceinline__ T hlo_shift_left(T x, T amount)
{
    const unsigned_of<T> n = unsigned_of<T>(amount);
    return n < bits_in<T> ? T(arithmetic_of<T>(x) << n) : T(0);
}
template <class T> __device__ __forceinline__ T hlo_shift_right_logical(T x, T amount)
{
    const unsigned_of<T> n = unsigned_of<T>(amount);
    return n < bits_in<T> ? T(unsigned_of<T>(x) >> n) : T(0);
}
// x >> 1 of 32 or 64 bits.  NVRTC 13.0 does not see through it: its time doubles with each halving of
// `x = (x + 1) >> 1`, a step of a search that is written out.  Nineteen took it half a minute.
template <class T> __device__ __forceinline__ T hlo_halve(T x)
{
    unsigned_of<T> half = unsigned_of<T>(x) >> 1;
#ifndef ASTITCH_HOST
    if constexpr (sizeof(T) == 8) asm("" : "+l"(half));
    else asm("" : "+r"(half));
#endif
    return T(half);
}
// On unsigned types too the upper bit is taken for the sign, as XLA does.
template <class T> __device__ __forceinline__ T hlo_shift_right_arithmetic(T x, T amount)
{
    const unsigned_of<T> n = unsigned_of<T>(amount);
    const bool negative = (unsigned_of<T>(x) >> (bits_in<T> - 1)) != 0;
    if (n >= bits_in<T>) return negative ? T(-1) : T(0);
    const arithmetic_of<T> fill = negative ? ~(arithmetic_of<T>(unsigned_of<T>(-1)) >> n) : arithmetic_of<T>(0);
    return T((arithmetic_of<T>(unsigned_of<T>(x)) >> n) | fill);
}

// The upper half of the product.
template <class T> __device__ __forceinline__ T hlo_mulhi(T a, T b)
{
    static_assert(is_integer<T>, "hlo_mulhi: integers");
    if constexpr (sizeof(T) < 8) {
        if constexpr (is_signed_integer<T>) return T(((long long)a * (long long)b) >> bits_in<T>);
        else return T(((unsigned long long)a * (unsigned long long)b) >> bits_in<T>);
    } else {
#ifdef ASTITCH_HOST
        if constexpr (is_signed_integer<T>) return T(((__int128)a * (__int128)b) >> 64);
        else return T(((unsigned __int128)a * (unsigned __int128)b) >> 64);
#else
        if constexpr (is_signed_integer<T>) return T(__mul64hi((long long)a, (long long)b));
        else return T(__umul64hi((unsigned long long)a, (unsigned long long)b));
#endif
    }
}

template <class T> __device__ __forceinline__ T hlo_popcnt(T x)
{
#ifdef ASTITCH_HOST
    return T(__builtin_popcountll(unsigned_of<T>(x)));
#else
    if constexpr (sizeof(T) == 8) return T(__popcll((long long)x));
    else return T(__popc((unsigned int)unsigned_of<T>(x)));
#endif
}

// Leading zeros; the width for 0.
template <class T> __device__ __forceinline__ T hlo_clz(T x)
{
    const unsigned_of<T> u = unsigned_of<T>(x);
#ifdef ASTITCH_HOST
    return u == 0 ? T(bits_in<T>) : T(__builtin_clzll(u) - (64 - bits_in<T>));
#else
    if constexpr (sizeof(T) == 8) return T(__clzll((long long)u));
    else return T(__clz((int)(unsigned int)u) - (32 - bits_in<T>));
#endif
}

// ---- powers -----------------------------------------------------------------------------------------

// By squaring.  As in XLA only the six lowest bits of a non-negative exponent count; a negative exponent is
// the reciprocal rounded toward zero: 0 unless the base is 1 or -1.
template <class T> __device__ __forceinline__ T hlo_power(T base, T exponent)
{
    static_assert(is_integer<T>, "hlo_power: integer, float or double");
    if constexpr (is_signed_integer<T>) {
        if (exponent < 0) return base == 1 || base == -1 ? ((exponent & 1) ? base : T(1)) : T(0);
    }
    arithmetic_of<T> square = arithmetic_of<T>(base), result = 1;
    unsigned int bits = (unsigned int)exponent & 63u;
    for (; bits != 0; bits >>= 1) {
        if (bits & 1) result *= square;
        square *= square;
    }
    return T(result);
}
__device__ __forceinline__ float hlo_power(float base, float exponent) { return ASTITCH_LIBM(powf)(base, exponent); }
__device__ __forceinline__ double hlo_power(double base, double exponent) { return ASTITCH_LIBM(pow)(base, exponent); }

// ---- functions of floats ----------------------------------------------------------------------------

#define ASTITCH_UNARY(name, function)                                                                 \
    __device__ __forceinline__ float name(float x) { return ASTITCH_LIBM(function##f)(x); }            \
    __device__ __forceinline__ double name(double x) { return ASTITCH_LIBM(function)(x); }

ASTITCH_UNARY(hlo_floor, floor)
ASTITCH_UNARY(hlo_ceil, ceil)
ASTITCH_UNARY(hlo_round_nearest_even, rint)
ASTITCH_UNARY(hlo_round_nearest_afz, round)
ASTITCH_UNARY(hlo_exp, exp)
ASTITCH_UNARY(hlo_expm1, expm1)
ASTITCH_UNARY(hlo_log, log)
ASTITCH_UNARY(hlo_log1p, log1p)
ASTITCH_UNARY(hlo_tanh, tanh)
ASTITCH_UNARY(hlo_tan, tan)
ASTITCH_UNARY(hlo_sin, sin)
ASTITCH_UNARY(hlo_cos, cos)
ASTITCH_UNARY(hlo_sqrt, sqrt)
ASTITCH_UNARY(hlo_cbrt, cbrt)
ASTITCH_UNARY(hlo_erf, erf)
ASTITCH_UNARY(hlo_acos, acos)
ASTITCH_UNARY(hlo_acosh, acosh)
ASTITCH_UNARY(hlo_asin, asin)
ASTITCH_UNARY(hlo_asinh, asinh)
ASTITCH_UNARY(hlo_atan, atan)
ASTITCH_UNARY(hlo_atanh, atanh)
ASTITCH_UNARY(hlo_cosh, cosh)
ASTITCH_UNARY(hlo_sinh, sinh)
#undef ASTITCH_UNARY

#ifdef ASTITCH_HOST
__device__ __forceinline__ float hlo_rsqrt(float x) { return 1.0f / __builtin_sqrtf(x); }
__device__ __forceinline__ double hlo_rsqrt(double x) { return 1.0 / __builtin_sqrt(x); }
#else
__device__ __forceinline__ float hlo_rsqrt(float x) { return rsqrtf(x); }
__device__ __forceinline__ double hlo_rsqrt(double x) { return rsqrt(x); }
#endif
template <class T> __device__ __forceinline__ T hlo_logistic(T x) { return T(1) / (T(1) + hlo_exp(-x)); }

__device__ __forceinline__ float hlo_atan2(float y, float x) { return ASTITCH_LIBM(atan2f)(y, x); }
__device__ __forceinline__ double hlo_atan2(double y, double x) { return ASTITCH_LIBM(atan2)(y, x); }

template <class T> __device__ __forceinline__ bool hlo_is_finite(T x)
{
    if constexpr (is_wide_float<T>) return x - x == 0;
    else return true;
}

// ---- functions whose result is rounded to f16 or bf16 ------------------------------------------------
//
// narrow_exp<T>(x) ... are as hlo_exp(x) to within a small part of the rounding to T that follows (f16 keeps 11
// bits, bf16 8), from the special function unit's 22-bit approximations.  bf16 results below 2^-126 may be 0.

#ifdef ASTITCH_HOST
__device__ __forceinline__ float approximate_exp2(float x) { return __builtin_exp2f(x); }
__device__ __forceinline__ float approximate_log2(float x) { return __builtin_log2f(x); }
__device__ __forceinline__ float approximate_reciprocal(float x) { return 1.0f / x; }
__device__ __forceinline__ float approximate_tanh(float x) { return __builtin_tanhf(x); }
#else
#define ASTITCH_APPROXIMATE(name, instruction)                              \
    __device__ __forceinline__ float name(float x)                          \
    {                                                                       \
        float result;                                                       \
        asm(instruction " %0, %1;" : "=f"(result) : "f"(x));                \
        return result;                                                      \
    }
ASTITCH_APPROXIMATE(approximate_exp2, "ex2.approx.ftz.f32")
ASTITCH_APPROXIMATE(approximate_log2, "lg2.approx.f32")
ASTITCH_APPROXIMATE(approximate_reciprocal, "rcp.approx.f32")
#if __CUDA_ARCH__ >= 750
ASTITCH_APPROXIMATE(approximate_tanh, "tanh.approx.f32")  // error 2^-11: for bf16 only
#endif
#undef ASTITCH_APPROXIMATE
#endif

template <class T> __device__ __forceinline__ float narrow_exp(float x) { return approximate_exp2(x * 1.44269504f); }

// Near 1 the error of lg2 is 2^-22, which f16's values there would show.
template <class T> __device__ __forceinline__ float narrow_log(float x)
{
    if constexpr (is_same<T, bf16>) return approximate_log2(x) * 0.693147181f;
    else return hlo_log(x);
}

// The reciprocal of a divisor that is the same for many elements is computed once.  Divisors below 2^-126 are exact
// for f16 only: bf16's own subnormals may give infinity.
template <class T> __device__ __forceinline__ float narrow_divide(float a, float b) { return a * approximate_reciprocal(b); }

template <class T> __device__ __forceinline__ float narrow_logistic(float x)
{
    return approximate_reciprocal(1.0f + approximate_exp2(x * -1.44269504f));
}

template <class T> __device__ __forceinline__ float narrow_tanh(float x)
{
#if defined(ASTITCH_HOST) || __CUDA_ARCH__ >= 750
    if constexpr (is_same<T, bf16>) return approximate_tanh(x);
#endif
    const float tail = 1.0f - 2.0f * approximate_reciprocal(approximate_exp2(x * 2.88539008f) + 1.0f);
    const float small = x * (1.0f - x * x * (1.0f / 3.0f));  // the next term is below 2^-20 of x where this is taken
    return x < 0.03125f && x > -0.03125f ? small : tail;
}

// a * b + c, rounded once.
__device__ __forceinline__ float hlo_multiply_add(float a, float b, float c) { return ASTITCH_LIBM(fmaf)(a, b, c); }
__device__ __forceinline__ double hlo_multiply_add(double a, double b, double c) { return ASTITCH_LIBM(fma)(a, b, c); }

// a / b within 2 ulp over the whole range, like hlo_divide, for a divisor that the elements around share: the compiler
// keeps its reciprocal.  A power of two moves very large and very small divisors to where that is exact enough.
__device__ __forceinline__ float hlo_divide_shared(float a, float b)
{
    const float size = same_bits<float>(bits_of(b) & 0x7fffffffu);
    const float scale = size > 0x1p126f ? 0x1p-24f : size < 0x1p-126f ? 0x1p24f : 1.0f;
    return a * scale * approximate_reciprocal(b * scale);
}

// 1 / x, within 2^-23 of it, and exp(x) where results below 2^-126 may be 0; x > 0 and x <= 0, or infinite.
__device__ __forceinline__ float reciprocal(float x) { return approximate_reciprocal(x); }
__device__ __forceinline__ double reciprocal(double x) { return 1.0 / x; }
__device__ __forceinline__ float summand_exp(float x)
{
    // Equal terms of a long sum are all off by the same: what rounding the power takes from x goes into a factor 1 + rest.
    const float power = x * 1.44269504f, rest = hlo_multiply_add(-0.693147181f, power, x);
    const float result = approximate_exp2(power), nearer = hlo_multiply_add(result, rest, result);
    return hlo_abs(x) < 200.0f ? nearer : result;  // 0 and infinity have no rest
}
__device__ __forceinline__ double summand_exp(double x) { return hlo_exp(x); }

// ---- comparisons ------------------------------------------------------------------------------------

// Integer that orders floats totally: -NaN < -inf < ... < -0 < +0 < ... < inf < NaN.
__device__ __forceinline__ int total_order_key(float x)
{
    const int bits = same_bits<int>(x);
    return bits < 0 ? bits ^ 0x7fffffff : bits;
}
__device__ __forceinline__ long long total_order_key(double x)
{
    const long long bits = same_bits<long long>(x);
    return bits < 0 ? bits ^ 0x7fffffffffffffffll : bits;
}
template <class T> __device__ __forceinline__ T total_order_key(T x) { return x; }

#define ASTITCH_COMPARE(direction, sign)                                                             \
    template <class T> __device__ __forceinline__ bool hlo_compare_##direction(T a, T b) { return a sign b; } \
    template <class T> __device__ __forceinline__ bool hlo_compare_##direction##_total(T a, T b)      \
    {                                                                                                \
        return total_order_key(a) sign total_order_key(b);                                           \
    }

ASTITCH_COMPARE(eq, ==)
ASTITCH_COMPARE(ne, !=)
ASTITCH_COMPARE(lt, <)
ASTITCH_COMPARE(le, <=)
ASTITCH_COMPARE(gt, >)
ASTITCH_COMPARE(ge, >=)
#undef ASTITCH_COMPARE

// ---- conversions ------------------------------------------------------------------------------------

// Float to integer: toward zero, out of range gives the nearest bound, NaN gives 0.
template <class To, class From> __device__ __forceinline__ To saturate_to_integer(From x)
{
    // 2^(value bits) is exact in every float type, the largest integer often is not.
    constexpr From bound = From(is_signed_integer<To> ? 1ull << (bits_in<To> - 2) : 1ull << (bits_in<To> - 1)) * From(2);
    if (x >= bound) return largest_of<To>();
    if (is_signed_integer<To> ? x < -bound : x <= From(-1)) return smallest_of<To>();
    return x == x ? To(x) : To(0);
}

// Value x (in the compute type of From) converted to storage type To, in the compute type of To.
// From may be left out: the compute type says enough.  Integers and pred wrap into integers; anything to pred is
// x != 0; integers round to the nearest float; f64 to bf16 and integers to f16, bf16, f8 go through float, as in XLA.
template <class To, class From = void, class X> __device__ __forceinline__ compute_of<To> hlo_convert(X x)
{
    static_assert(is_same<From, void> || is_same<compute_of<From>, X>, "hlo_convert: x is not a value of From");
    static_assert(is_pred<X> || is_integer<X> || is_wide_float<X> || is_complex<X>, "hlo_convert: x has no compute type");
    if constexpr (is_complex<To>) {
        using Part = part_of<To>;
        if constexpr (is_complex<X>) return To{Part(x.re), Part(x.im)};
        else return To{Part(x), Part(0)};
    } else if constexpr (is_complex<X>) {
        static_assert(is_pred<To>, "hlo_convert: a complex number has no real value");
        return x.re != 0 || x.im != 0;
    } else if constexpr (is_pred<To>) {
        return x != X(0);
    } else if constexpr (is_integer<To>) {
        if constexpr (is_wide_float<X>) return saturate_to_integer<To>(x);
        else return To(x);
    } else if constexpr (is_wide_float<To>) {
        return To(x);
    } else if constexpr (is_same<X, double>) {
        return to_float(from_double<To>(x));
    } else if constexpr (is_same<To, From>) {
        return x;
    } else {
        return round_to<To>(float(x));
    }
}

// The bits of x, a value of HLO type From, read as HLO type To of the same size.
template <class To, class From = void, class X> __device__ __forceinline__ compute_of<To> hlo_bitcast(X x)
{
    using Stored = choose<is_same<From, void>, X, From>;
    static_assert(is_same<compute_of<Stored>, X>, "hlo_bitcast: x is not a value of From");
    return load_as<compute_of<To>>(same_bits<To>(store_as<Stored>(x)));
}

// Part number `part` (the lowest bits first) of the bits of x, a value of HLO type From, read as the narrower To.
template <class To, class From, class X> __device__ __forceinline__ compute_of<To> hlo_bitcast_part(X x, int part)
{
    const unsigned_of<From> bits = same_bits<unsigned_of<From>>(store_as<From>(x));
    return load_as<compute_of<To>>(same_bits<To>(unsigned_of<To>(bits >> (8 * sizeof(To) * part))));
}

// The bits of values of HLO type From side by side (the first lowest), read as the wider To.
template <class To, class From, class... X> __device__ __forceinline__ compute_of<To> hlo_bitcast_join(X... parts)
{
    unsigned_of<To> bits = 0;
    int shift = 0;
    ((bits |= unsigned_of<To>(same_bits<unsigned_of<From>>(store_as<From>(parts))) << shift, shift += 8 * sizeof(From)), ...);
    return load_as<compute_of<To>>(same_bits<To>(bits));
}

// Exponent and mantissa bits of a float type.
template <class T> constexpr int exponent_bits =
    is_same<T, double> ? 11 : is_same<T, f16> || is_same<T, f8e5m2> ? 5 : is_same<T, f8e4m3fn> ? 4 : 8;
template <class T> constexpr int mantissa_bits =
    is_same<T, double> ? 52 : is_same<T, float> ? 23 : is_same<T, f16> ? 10 : is_same<T, bf16> ? 7 : is_same<T, f8e4m3fn> ? 3 : 2;

// x, a value of HLO type From, rounded to a float format of the given exponent and mantissa bits.  Subnormals of that
// format are flushed to zero, too large gives infinity, NaN stays.  A format as wide as From changes nothing.
template <int exponent, int mantissa, class From = void, class T>
__device__ __forceinline__ T hlo_reduce_precision(T x)
{
    using Stored = choose<is_same<From, void>, T, From>;
    static_assert(is_wide_float<T> && is_same<compute_of<Stored>, T>, "hlo_reduce_precision: x is not a value of From");
    using U = unsigned_of<T>;
    constexpr int own_mantissa = mantissa_bits<T>;
    constexpr int own_exponent = exponent_bits<T>;
    U u = bits_of(x);
    if (x != x) return x;
    if constexpr (mantissa < mantissa_bits<Stored>) {
        constexpr int dropped = own_mantissa - mantissa;
        u += ((U(1) << dropped) >> 1) - 1 + ((u >> dropped) & 1);
        u &= ~((U(1) << dropped) - 1);
    }
    if constexpr (exponent < exponent_bits<Stored>) {
        constexpr U bias = (U(1) << (own_exponent - 1)) - 1;
        constexpr U narrow_bias = (U(1) << (exponent - 1)) - 1;
        constexpr U sign_bit = U(1) << (bits_in<T> - 1);
        constexpr U infinity = ((U(1) << own_exponent) - 1) << own_mantissa;
        const U e = (u & infinity) >> own_mantissa;
        if (e > bias + narrow_bias) u = (u & sign_bit) | infinity;
        if (e <= bias - narrow_bias) u &= sign_bit;
    }
    return same_bits<T>(u);
}

#endif
