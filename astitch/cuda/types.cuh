// Storage types of HLO elements and their conversions to the types that registers hold.
//
// Needs no other header, so NVRTC compiles it in milliseconds; the host compiler reads the same text
// (ASTITCH_HOST).  A storage type is what lies in memory; a compute type is what an expression uses:
//
//   HLO     storage          compute        HLO       storage    compute
//   pred    bool             bool           f16       f16        float, rounded to f16 after every op
//   s8..64  signed char ...  same           bf16      bf16       float, rounded to bf16 after every op
//   u8..64  unsigned char..  same           f8e4m3fn  f8e4m3fn   float, rounded likewise
//   f32/64  float, double    same           f8e5m2    f8e5m2     float, rounded likewise
//   c64/128 c64, c128        same
//
//   load_as<C>(stored), store_as<T>(value), store_exact<T>(value), round_to<T>(value)   what emitted text uses
//   to_float(stored), from_float<T>(f), from_double<T>(d)        round to nearest even; NaN stays NaN;
//     overflow gives infinity (f16, bf16, f8e5m2) or NaN (f8e4m3fn, which has no infinity), as ml_dtypes does
#ifndef ASTITCH_TYPES_CUH
#define ASTITCH_TYPES_CUH

struct f16 { unsigned short bits; };
struct bf16 { unsigned short bits; };
struct f8e4m3fn { unsigned char bits; };
struct f8e5m2 { unsigned char bits; };

template <class R> struct alignas(2 * sizeof(R)) Complex { R re, im; };
using c64 = Complex<float>;
using c128 = Complex<double>;

// ---- what C++ type stands for what ------------------------------------------------------------------

template <class A, class B> struct is_same_type { static constexpr bool value = false; };
template <class A> struct is_same_type<A, A> { static constexpr bool value = true; };
template <class A, class B> constexpr bool is_same = is_same_type<A, B>::value;

template <class T> constexpr bool is_narrow_float =
    is_same<T, f16> || is_same<T, bf16> || is_same<T, f8e4m3fn> || is_same<T, f8e5m2>;
template <class T> constexpr bool is_wide_float = is_same<T, float> || is_same<T, double>;
template <class T> constexpr bool is_complex = is_same<T, c64> || is_same<T, c128>;
template <class T> constexpr bool is_pred = is_same<T, bool>;
template <class T> constexpr bool is_signed_integer =
    is_same<T, signed char> || is_same<T, short> || is_same<T, int> || is_same<T, long long>;
template <class T> constexpr bool is_unsigned_integer =
    is_same<T, unsigned char> || is_same<T, unsigned short> || is_same<T, unsigned int> ||
    is_same<T, unsigned long long>;
template <class T> constexpr bool is_integer = is_signed_integer<T> || is_unsigned_integer<T>;

template <bool condition, class A, class B> struct choose_type { using type = A; };
template <class A, class B> struct choose_type<false, A, B> { using type = B; };
template <bool condition, class A, class B> using choose = typename choose_type<condition, A, B>::type;

template <class T> using compute_of = choose<is_narrow_float<T>, float, T>;

// The type of both parts of a complex number.
template <class T> struct part_type { using type = T; };
template <class R> struct part_type<Complex<R>> { using type = R; };
template <class T> using part_of = typename part_type<T>::type;

// The unsigned integer of as many bytes.
template <int bytes> struct unsigned_type;
template <> struct unsigned_type<1> { using type = unsigned char; };
template <> struct unsigned_type<2> { using type = unsigned short; };
template <> struct unsigned_type<4> { using type = unsigned int; };
template <> struct unsigned_type<8> { using type = unsigned long long; };
template <class T> using unsigned_of = typename unsigned_type<int(sizeof(T))>::type;

// ---- bits of floats ---------------------------------------------------------------------------------

// The same bytes as another type of the same size (NVRTC and g++ turn it into a register move).
template <class To, class From> __device__ __forceinline__ To same_bits(From x)
{
    static_assert(sizeof(To) == sizeof(From), "same_bits: the sizes differ");
    To result;
#ifdef ASTITCH_HOST
    __builtin_memcpy(&result, &x, sizeof(To));
#else
    memcpy(&result, &x, sizeof(To));
#endif
    return result;
}

__device__ __forceinline__ unsigned int bits_of(float x) { return same_bits<unsigned int>(x); }
__device__ __forceinline__ unsigned long long bits_of(double x) { return same_bits<unsigned long long>(x); }

// Code of the float with bits `u` in a format of `exponent` and `mantissa` bits, rounded to nearest even.  Without
// branches: in a loop over a vector they would keep the loads of its next turns from starting early.
template <int exponent, int mantissa, bool has_infinity>
__device__ __forceinline__ unsigned int encode_float(unsigned int u)
{
    constexpr unsigned int all = (1u << (exponent + mantissa)) - 1;
    constexpr unsigned int infinity = all - ((1u << mantissa) - 1);
    constexpr unsigned int bias = (1u << (exponent - 1)) - 1;
    constexpr unsigned int overflow = has_infinity ? infinity : all;
    constexpr unsigned int shift = 23 - mantissa;
    const unsigned int sign = (u >> 31) << (exponent + mantissa);
    const unsigned int a = u & 0x7fffffffu;
    const unsigned int rounded = (a + ((1u << (shift - 1)) - 1) + ((a >> shift) & 1)) >> shift;
    const unsigned int normal = rounded - ((127 - bias) << mantissa);
    // The last bit of `unit` is worth the smallest subnormal, so the addition rounds to a multiple of it.
    constexpr unsigned int unit = (151 - bias - mantissa) << 23;
    const unsigned int subnormal = bits_of(same_bits<float>(a) + same_bits<float>(unit)) - unit;
    unsigned int code = a >= ((128 - bias) << 23) ? normal : subnormal;
    code = code < overflow ? code : overflow;
    if constexpr (has_infinity) {  // NaN: the upper bits of the payload are kept, quiet if none is set
        const unsigned int payload = (a >> shift) & (all - infinity);
        const unsigned int nan = infinity | (payload ? payload : 1u << (mantissa - 1));
        code = a > 0x7f800000u ? nan : code;
    }
    return sign | code;
}

// 2 to the power n, a normal float.
__device__ __forceinline__ float power_of_two(int n) { return same_bits<float>((unsigned int)(n + 127) << 23); }

// |x| as a modifier of the instruction that reads it.
__device__ __forceinline__ float magnitude(float x)
{
#ifdef ASTITCH_HOST
    return __builtin_fabsf(x);
#else
    return fabsf(x);
#endif
}

// The float that a code of the format stands for (exact): its bits where a float has its own are that float over a
// power of two, also where both are subnormal.
template <int exponent, int mantissa, bool has_infinity>
__device__ __forceinline__ float decode_float(unsigned int code)
{
    constexpr unsigned int magnitudes = ((1u << (exponent + mantissa)) - 1) << (23 - mantissa);
    constexpr int bias = (1 << (exponent - 1)) - 1;
    // The upper bits of the float's exponent, which the arithmetic shift fills with the sign, are masked.
    const int upper = int(code << (31 - exponent - mantissa)) >> (8 - exponent);
    const float finite = same_bits<float>((unsigned int)upper & (0x80000000u | magnitudes)) * power_of_two(127 - bias);
    if constexpr (has_infinity) {
        const float special = same_bits<float>(bits_of(finite) | 0x7f800000u);
        return magnitude(finite) >= power_of_two(bias + 1) ? special : finite;
    } else {  // the last code would be this number, but is NaN
        constexpr unsigned int last = magnitudes + ((127 - bias) << 23);
        const float nan = same_bits<float>(bits_of(finite) ^ last ^ 0x7fc00000u);
        return magnitude(finite) == same_bits<float>(last) ? nan : finite;
    }
}

// ---- float to f8 ------------------------------------------------------------------------------------

#if !defined(ASTITCH_HOST) && __CUDA_ARCH__ >= 890
// The instruction converts two floats (the second operand to the lower byte); it saturates, and knows one NaN.
#define ASTITCH_CONVERT_F8(format, N, codes, v)                                                                      \
    if constexpr (N == 4) {                                                                                          \
        asm("{ .reg .b16 low, high; cvt.rn.satfinite." format ".f32 low, %2, %1; "                                   \
            "cvt.rn.satfinite." format ".f32 high, %4, %3; mov.b32 %0, {low, high}; }"                               \
            : "=r"(codes) : "f"(v[0]), "f"(v[1]), "f"(v[2]), "f"(v[3]));                                             \
    } else {                                                                                                         \
        asm("{ .reg .b16 low; cvt.rn.satfinite." format ".f32 low, %2, %1; cvt.u32.u16 %0, low; }"                   \
            : "=r"(codes) : "f"(v[0]), "f"(N == 2 ? v[N - 1] : 0.0f));                                               \
    }

// What the code of x is where the instruction gives another, in the upper byte.
template <class T> __device__ __forceinline__ unsigned int special_code(float x)
{
    const unsigned int u = bits_of(x), a = u & 0x7fffffffu;
    if constexpr (is_same<T, f8e4m3fn>) return u | 0x7f000000u;
    // Infinity; of a NaN the upper bits of the payload, quiet if none is set.
    const unsigned int quiet = a - 0x7f800001u < 0x1fffffu ? 0x02000000u : 0u;
    return (u & 0x80000000u) | ((a > 0x7f800000u ? a : 0x7f800000u) << 3 & 0x7f000000u) | quiet;
}

template <class T> __device__ __forceinline__ bool has_special_code(float x)
{
    if constexpr (is_same<T, f8e4m3fn>) return !(magnitude(x) <= 464.0f);
    else return !(magnitude(x) < 61440.0f);
}
#endif

// The codes of N = 1, 2 or 4 floats as f8, the first in the lowest byte.
template <class T, int N> __device__ __forceinline__ unsigned int encode_f8(const float (&v)[N])
{
    constexpr bool e4m3 = is_same<T, f8e4m3fn>;
    static_assert((e4m3 || is_same<T, f8e5m2>) && (N == 1 || N == 2 || N == 4), "encode_f8: not f8 in a word");
    unsigned int codes = 0;
#if !defined(ASTITCH_HOST) && __CUDA_ARCH__ >= 890
    if constexpr (e4m3) {
        ASTITCH_CONVERT_F8("e4m3x2", N, codes, v)
    } else {
        ASTITCH_CONVERT_F8("e5m2x2", N, codes, v)
    }
#pragma unroll
    for (int i = 0; i < N; ++i) {  // byte i of the codes gives way to the upper byte of the special code
        const unsigned int replaced = __byte_perm(codes, special_code<T>(v[i]), 0x3210 + ((7 - i) << (4 * i)));
        codes = has_special_code<T>(v[i]) ? replaced : codes;
    }
#else
    for (int i = 0; i < N; ++i) {
        constexpr int exponent = e4m3 ? 4 : 5, mantissa = e4m3 ? 3 : 2;
        codes |= encode_float<exponent, mantissa, !e4m3>(bits_of(v[i])) << (8 * i);
    }
#endif
    return codes;
}

// ---- storage to float -------------------------------------------------------------------------------

__device__ __forceinline__ float to_float(f16 x)
{
#ifdef ASTITCH_HOST
    return decode_float<5, 10, true>(x.bits);
#else
    float result;
    asm("cvt.f32.f16 %0, %1;" : "=f"(result) : "h"(x.bits));
    return result;
#endif
}
__device__ __forceinline__ float to_float(bf16 x) { return same_bits<float>((unsigned int)x.bits << 16); }
__device__ __forceinline__ float to_float(f8e4m3fn x) { return decode_float<4, 3, false>(x.bits); }
__device__ __forceinline__ float to_float(f8e5m2 x) { return decode_float<5, 2, true>(x.bits); }
__device__ __forceinline__ float to_float(float x) { return x; }

// ---- float to storage -------------------------------------------------------------------------------

template <class T> __device__ __forceinline__ T from_float(float x)
{
    if constexpr (is_same<T, f16>) {
#ifdef ASTITCH_HOST
        return f16{(unsigned short)encode_float<5, 10, true>(bits_of(x))};
#else
        unsigned short bits;
        asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(x));
        return f16{bits};
#endif
    } else if constexpr (is_same<T, bf16>) {
#if !defined(ASTITCH_HOST) && __CUDA_ARCH__ >= 800
        unsigned short bits;
        asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(x));
        return bf16{bits};
#else
        const unsigned int u = bits_of(x);
        if (x != x) return bf16{(unsigned short)((u >> 16) | (u & 0x7f0000u ? 0u : 0x40u))};
        return bf16{(unsigned short)((u + 0x7fffu + ((u >> 16) & 1)) >> 16)};
#endif
    } else if constexpr (is_same<T, f8e4m3fn> || is_same<T, f8e5m2>) {
        const float one[1] = {x};
        return T{(unsigned char)encode_f8<T>(one)};
    } else {
        static_assert(is_same<T, float>, "from_float: not a float storage type");
        return x;
    }
}

// The codes of two floats as f16 or bf16, the first in the lower half.
template <class T> __device__ __forceinline__ unsigned int encode_pair(float first, float second)
{
    static_assert(is_same<T, f16> || is_same<T, bf16>, "encode_pair: not two to a word");
#if !defined(ASTITCH_HOST) && __CUDA_ARCH__ >= 800
    unsigned int codes;
    if constexpr (is_same<T, f16>) asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(codes) : "f"(second), "f"(first));
    else asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(codes) : "f"(second), "f"(first));
    return codes;
#else
    return from_float<T>(first).bits | (unsigned int)from_float<T>(second).bits << 16;
#endif
}

// The float nearest to x on the side that keeps "x is not representable" visible in the last bit, so that
// rounding it once more to a narrower format gives what rounding x directly would give.
__device__ __forceinline__ float round_to_odd(double x)
{
    const float nearest = float(x);
    const unsigned int u = bits_of(nearest);
    if (double(nearest) == x || x != x || (u & 1)) return nearest;
    // The even neighbour was chosen: step to the odd one on the side of x.
    const bool too_large = (double(nearest) < 0 ? -double(nearest) : double(nearest)) > (x < 0 ? -x : x);
    return same_bits<float>(too_large ? u - 1 : u + 1);
}

// From double.  bf16 goes through float (two roundings), as XLA and ml_dtypes do; the others round once.
template <class T> __device__ __forceinline__ T from_double(double x)
{
    if constexpr (is_same<T, float> || is_same<T, bf16>) {
        return from_float<T>(float(x));
    } else if constexpr (is_same<T, f16>) {
#ifdef ASTITCH_HOST
        return from_float<f16>(round_to_odd(x));
#else
        unsigned short bits;
        asm("cvt.rn.f16.f64 %0, %1;" : "=h"(bits) : "d"(x));
        return f16{bits};
#endif
    } else {
        return from_float<T>(round_to_odd(x));
    }
}

// ---- what emitted text uses -------------------------------------------------------------------------

// The value of a stored element in its compute type.
template <class C, class T> __device__ __forceinline__ C load_as(T stored)
{
    static_assert(is_same<C, compute_of<T>>, "load_as: C is not the compute type of T");
    if constexpr (is_narrow_float<T>) {
        return to_float(stored);
    } else {
        return stored;
    }
}

// The element that stores `value`.
template <class T> __device__ __forceinline__ T store_as(compute_of<T> value)
{
    if constexpr (is_narrow_float<T>) {
        return from_float<T>(value);
    } else {
        return value;
    }
}

// `value` rounded to what storage type T can hold (nothing to do for types that registers hold as they are).
template <class T> __device__ __forceinline__ compute_of<T> round_to(compute_of<T> value)
{
#if !defined(ASTITCH_HOST) && __CUDA_ARCH__ >= 800
    if constexpr (is_same<T, bf16>) {  // packed over a zero, the rounded half is the float: one instruction
        unsigned int bits;
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(value), "f"(0.0f));
        return same_bits<float>(bits);
    }
#endif
    return load_as<compute_of<T>>(store_as<T>(value));
}

// The element that stores `value`, which T can hold exactly: what round_to<T> or load_as gave.
template <class T> __device__ __forceinline__ T store_exact(compute_of<T> value)
{
    if constexpr (is_same<T, bf16>) {
        return bf16{(unsigned short)(bits_of(value) >> 16)};
    } else {
        return store_as<T>(value);
    }
}

#endif
