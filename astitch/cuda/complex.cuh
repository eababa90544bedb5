// HLO's element-wise ops on complex numbers (Complex<R> of types.cuh), for kernels that have some.
//
// Zeros, infinities and NaN follow C's Annex G for functions; products and quotients follow the plain formulas, as XLA's do.
#ifndef ASTITCH_COMPLEX_CUH
#define ASTITCH_COMPLEX_CUH

#include "hlo_math.cuh"

#define ASTITCH_OF_PARTS template <class R> __device__ __forceinline__

__device__ __forceinline__ float hypotenuse(float a, float b) { return ASTITCH_LIBM(hypotf)(a, b); }
__device__ __forceinline__ double hypotenuse(double a, double b) { return ASTITCH_LIBM(hypot)(a, b); }
__device__ __forceinline__ float with_sign(float size, float sign) { return ASTITCH_LIBM(copysignf)(size, sign); }
__device__ __forceinline__ double with_sign(double size, double sign) { return ASTITCH_LIBM(copysign)(size, sign); }
// The exponent of the power of two that a finite number other than 0 contains, and a number times such a power.
__device__ __forceinline__ int exponent_of(float x) { return ASTITCH_LIBM(ilogbf)(x); }
__device__ __forceinline__ int exponent_of(double x) { return ASTITCH_LIBM(ilogb)(x); }
__device__ __forceinline__ float scaled(float x, int exponent) { return ASTITCH_LIBM(scalbnf)(x, exponent); }
__device__ __forceinline__ double scaled(double x, int exponent) { return ASTITCH_LIBM(scalbn)(x, exponent); }

ASTITCH_OF_PARTS bool is_infinite(R x) { return x == x && !hlo_is_finite(x); }
ASTITCH_OF_PARTS bool is_finite(Complex<R> z) { return hlo_is_finite(z.re) && hlo_is_finite(z.im); }

// ---- parts ------------------------------------------------------------------------------------------

ASTITCH_OF_PARTS Complex<R> hlo_complex(R re, R im) { return Complex<R>{re, im}; }
ASTITCH_OF_PARTS R hlo_real(Complex<R> z) { return z.re; }
ASTITCH_OF_PARTS R hlo_imag(Complex<R> z) { return z.im; }

// ---- arithmetic -------------------------------------------------------------------------------------

ASTITCH_OF_PARTS Complex<R> operator+(Complex<R> a, Complex<R> b) { return {a.re + b.re, a.im + b.im}; }
ASTITCH_OF_PARTS Complex<R> operator-(Complex<R> a, Complex<R> b) { return {a.re - b.re, a.im - b.im}; }
ASTITCH_OF_PARTS Complex<R> operator-(Complex<R> z) { return {-z.re, -z.im}; }
ASTITCH_OF_PARTS Complex<R> operator*(Complex<R> a, Complex<R> b)
{
    return {a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re};
}
ASTITCH_OF_PARTS bool operator==(Complex<R> a, Complex<R> b) { return a.re == b.re && a.im == b.im; }
ASTITCH_OF_PARTS bool operator!=(Complex<R> a, Complex<R> b) { return a.re != b.re || a.im != b.im; }

// Smith's formula: neither the square of the divisor nor a product with the dividend overflows.  What is NaN by it is
// zero or infinite where C's Annex G says so.
ASTITCH_OF_PARTS Complex<R> operator/(Complex<R> a, Complex<R> b)
{
    const bool turned = hlo_abs(b.re) < hlo_abs(b.im);
    const R large = turned ? b.im : b.re, small = turned ? b.re : b.im, ratio = small / large, below = large + small * ratio;
    Complex<R> quotient{(turned ? a.re * ratio + a.im : a.re + a.im * ratio) / below,
                        (turned ? a.im * ratio - a.re : a.im - a.re * ratio) / below};
    if (quotient.re != quotient.re && quotient.im != quotient.im) {
        const R infinity = R(1) / R(0);
        const auto unit = [](R x) { return with_sign(is_infinite(x) ? R(1) : R(0), x); };
        if (b.re == 0 && b.im == 0 && (a.re == a.re || a.im == a.im)) {
            quotient = {with_sign(infinity, b.re) * a.re, with_sign(infinity, b.re) * a.im};
        } else if ((is_infinite(a.re) || is_infinite(a.im)) && is_finite(b)) {
            const R x = unit(a.re), y = unit(a.im);
            quotient = {infinity * (x * b.re + y * b.im), infinity * (y * b.re - x * b.im)};
        } else if ((is_infinite(b.re) || is_infinite(b.im)) && is_finite(a)) {
            const R x = unit(b.re), y = unit(b.im);
            quotient = {R(0) * (a.re * x + a.im * y), R(0) * (a.im * x - a.re * y)};
        }
    }
    return quotient;
}

// NaN wins over infinity, as in XLA.
ASTITCH_OF_PARTS R hlo_abs(Complex<R> z)
{
    return z.re != z.re ? z.re : z.im != z.im ? z.im : hypotenuse(z.re, z.im);
}
ASTITCH_OF_PARTS Complex<R> hlo_sign(Complex<R> z)
{
    const R size = hlo_abs(z);
    return size == 0 ? z : Complex<R>{z.re / size, z.im / size};
}

// ---- functions --------------------------------------------------------------------------------------

// log |x + iy| where one of them may have lost digits beside 1: x is the distance of the real part from 1.
ASTITCH_OF_PARTS R log_of_size_near_one(R x, R y) { return R(0.5) * hlo_log1p(x * (R(2) + x) + y * y); }

ASTITCH_OF_PARTS Complex<R> hlo_log(Complex<R> z)
{
    const R a = hlo_abs(z.re), b = hlo_abs(z.im), larger = a > b ? a : b, smaller = a > b ? b : a;
    const bool near_one = larger > R(0.5) && larger < R(2) && smaller < R(2);
    const R size = near_one ? log_of_size_near_one(larger - R(1), smaller) : hlo_log(hypotenuse(a, b));
    return {size, hlo_atan2(z.im, z.re)};
}

ASTITCH_OF_PARTS Complex<R> hlo_log1p(Complex<R> z)
{
    const R real = z.re + R(1);
    const bool near_one = hlo_abs(z.re) < R(0.5) && hlo_abs(z.im) < R(1);
    return {near_one ? log_of_size_near_one(z.re, z.im) : hlo_log(hypotenuse(real, z.im)), hlo_atan2(z.im, real)};
}

ASTITCH_OF_PARTS Complex<R> hlo_exp(Complex<R> z)
{
    const R size = hlo_exp(z.re);
    if (z.im == 0) return {size, z.im};
    if (size == 0 && !hlo_is_finite(z.im)) return {R(0), R(0)};
    // Half of the exponent before and half after the angle: exp(z.re) alone may overflow where the product does not.
    if (is_infinite(size) && hlo_is_finite(z.re)) {
        const R half = hlo_exp(z.re * R(0.5));
        return {half * hlo_cos(z.im) * half, half * hlo_sin(z.im) * half};
    }
    if (is_infinite(size) && !hlo_is_finite(z.im)) return {size, z.im - z.im};
    return {size * hlo_cos(z.im), size * hlo_sin(z.im)};
}

ASTITCH_OF_PARTS Complex<R> hlo_expm1(Complex<R> z)
{
    const R less = hlo_expm1(z.re), half = hlo_sin(z.im * R(0.5));
    if (z.im == 0) return {less, z.im};
    return {less * hlo_cos(z.im) - R(2) * half * half, hlo_exp(z.re) * hlo_sin(z.im)};
}

ASTITCH_OF_PARTS Complex<R> hlo_sin(Complex<R> z)
{
    return {hlo_sin(z.re) * hlo_cosh(z.im), z.im == 0 ? z.im * hlo_cos(z.re) : hlo_cos(z.re) * hlo_sinh(z.im)};
}
ASTITCH_OF_PARTS Complex<R> hlo_cos(Complex<R> z)
{
    return {hlo_cos(z.re) * hlo_cosh(z.im), -(hlo_sin(z.re) * hlo_sinh(z.im))};
}

// Kahan, Branch cuts for complex elementary functions, 1987.
ASTITCH_OF_PARTS Complex<R> hlo_tanh(Complex<R> z)
{
    const R limit = sizeof(R) == 8 ? R(22) : R(11);
    if (z.im == 0) return {hlo_tanh(z.re), z.im};
    if (is_infinite(z.re) && !hlo_is_finite(z.im)) return {with_sign(R(1), z.re), with_sign(R(0), z.im)};
    if (hlo_abs(z.re) >= limit && hlo_is_finite(z.im)) {  // the real part is 1 to the last place
        const R left = hlo_exp(-hlo_abs(z.re)), angle = hlo_sin(z.im) * hlo_cos(z.im);
        return {with_sign(R(1), z.re), R(4) * angle * left * left};
    }
    const R slope = hlo_tan(z.im), growth = R(1) + slope * slope, s = hlo_sinh(z.re);
    const R root = hlo_sqrt(R(1) + s * s), below = R(1) + growth * s * s;
    return {growth * root * s / below, slope / below};
}
ASTITCH_OF_PARTS Complex<R> hlo_tan(Complex<R> z)
{
    const Complex<R> turned = hlo_tanh(Complex<R>{-z.im, z.re});
    return {turned.im, -turned.re};
}

// 1 / (1 + exp(-z)), from the side on which the power is below 1.
ASTITCH_OF_PARTS Complex<R> hlo_logistic(Complex<R> z)
{
    const Complex<R> one{R(1), R(0)}, power = hlo_exp(z.re < 0 ? z : -z);
    return (z.re < 0 ? power : one) / (one + power);
}

ASTITCH_OF_PARTS Complex<R> hlo_sqrt(Complex<R> z)
{
    if (z.re == 0 && z.im == 0) return {R(0), z.im};
    if (is_infinite(z.im)) return {hlo_abs(z.im), z.im};
    if (is_infinite(z.re)) {
        const R rest = z.im == z.im ? R(0) : z.im;
        return z.re > 0 ? Complex<R>{z.re, with_sign(rest, z.im)} : Complex<R>{rest, with_sign(-z.re, z.im)};
    }
    // By a power of four, so that the sum below neither overflows nor loses digits.
    const R larger = hlo_maximum(hlo_abs(z.re), hlo_abs(z.im));
    const int half = larger == larger ? -(exponent_of(larger) / 2) : 0;
    const R a = scaled(z.re, 2 * half), b = scaled(z.im, 2 * half);
    const R root = hlo_sqrt(R(0.5) * (hlo_abs(a) + hypotenuse(a, b))), other = b / (R(2) * root);
    const Complex<R> result = a >= 0 ? Complex<R>{root, other} : Complex<R>{hlo_abs(other), with_sign(root, z.im)};
    return {scaled(result.re, -half), scaled(result.im, -half)};
}

ASTITCH_OF_PARTS Complex<R> hlo_rsqrt(Complex<R> z) { return Complex<R>{R(1), R(0)} / hlo_sqrt(z); }

// In polar form.  x^0 and 1^y are 1; 0^y is 0 for a real y above 0, else NaN.
ASTITCH_OF_PARTS Complex<R> hlo_power(Complex<R> x, Complex<R> y)
{
    const bool is_power_real = y.im == 0;
    if ((is_power_real && y.re == 0) || (x.re == 1 && x.im == 0)) return {R(1), R(0)};
    if (x.re == 0 && x.im == 0) {
        const R part = is_power_real && y.re > 0 ? R(0) : R(0) / R(0);
        return {part, part};
    }
    if (is_power_real && is_infinite(x.re) && x.re > 0 && x.im == 0) return {hlo_power(x.re, y.re), R(0)};
    const Complex<R> log = hlo_log(x);
    const R size = hlo_power(hlo_abs(x), y.re) * hlo_exp(-y.im * log.im), angle = y.im * log.re + y.re * log.im;
    return {size * hlo_cos(angle), size * hlo_sin(angle)};
}
ASTITCH_OF_PARTS Complex<R> hlo_cbrt(Complex<R> z)
{
    const R size = hlo_cbrt(hlo_abs(z)), angle = hlo_atan2(z.im, z.re) / R(3);
    return {size * hlo_cos(angle), size * hlo_sin(angle)};
}

#undef ASTITCH_OF_PARTS
#endif
