#include "astitch.cuh"
// stitch_0: grid 64 x 256 threads, 32 B shared
//   jit(rms_norm)/square
//   jit(rms_norm)/reduce_sum
//   jit(rms_norm)/div
//   jit(rms_norm)/add
//   jit(rms_norm)/rsqrt
//   jit(rms_norm)/mul
struct Reduce0 {
  static constexpr bool commutative = true;
  static constexpr Joint joint = JOINT_NONE;
  struct State { float f0; };
  static __device__ __forceinline__ State identity() { return State{0.0f}; }
  static __device__ __forceinline__ State combine(const State a, const State b) {
    const float v2 = hlo_add(a.f0, b.f0);
    return State{v2};
  }
  static __device__ __forceinline__ State take(const State s, int lane) {
    return State{value_of_lane(s.f0, lane)};
  }
  static __device__ __forceinline__ State shuffle(const State s, int mask) {
    return State{shuffle_value(s.f0, mask)};
  }
};
extern "C" __global__ void __launch_bounds__(256, 1) stitch_0(
    const float* __restrict__ p_x_1,
    const float* __restrict__ p_gamma_1,
    float* __restrict__ p_mul_15) {
  assume_threads<256>();
  ASTITCH_SHARED_ARENA(32);
  ASTITCH_SHARED(Reduce0::State, exchange_0_0, 0, 8);
  {  // loop 0: outer 64 / 1 threads, row 1 / 1 threads x 1, col 768 / 256 threads x 1 x 4; 64 tasks; row-reduce: a block a row
    const int thread = threadIdx.x;
    const int tx = threadIdx.x;
    const int ty = 0;
    const int to = 0;
    const int first = blockIdx.x;
    words_of<Vec<float, 4>>::type x_1_kept_0[1];
    words_of<Vec<float, 4>>::type gamma_1_now_0[1];
    {
      const int task = first;
      const int outer = task;
      Reduce0::State reduce_sum_7_state_0[1];
      #pragma unroll
      for (int i = 0; i < 1; ++i) reduce_sum_7_state_0[i] = Reduce0::identity();
      {
        const int k = 0;
        {
          const int l = 0;
          const int col = l * 1024 + tx * 4;
          if (col < 768) {
            const int at_0 = outer * 768 + col;
            const Vec<float, 4> x_1_v_0 = *reinterpret_cast<const Vec<float, 4>*>(p_x_1 + (at_0));
            x_1_kept_0[k + l] = to_words(x_1_v_0);
            gamma_1_now_0[k + l] = *reinterpret_cast<const words_of<Vec<float, 4>>::type*>(p_gamma_1 + (col));
            #pragma unroll
            for (int lane = 0; lane < 4; ++lane) {
              const float x_1 = load_as<float>(x_1_v_0.v[lane]);
              const float square_1 = hlo_multiply(x_1, x_1);
              reduce_sum_7_state_0[0].f0 = hlo_multiply_add(x_1, x_1, reduce_sum_7_state_0[0].f0);
            }
          }
        }
      }
      reduce_warps<Reduce0>(reduce_sum_7_state_0, exchange_0_0);
      __syncthreads();
      combine_warps<Reduce0, 256, false>(reduce_sum_7_state_0, exchange_0_0);
      const float reduce_sum_7 = reduce_sum_7_state_0[0].f0;
      const float div_3_divide_0 = hlo_divide_shared(reduce_sum_7, 768.0f);
      const float add_3_add_0 = hlo_add(div_3_divide_0, 1e-06f);
      const float rsqrt_1_rsqrt_0 = hlo_rsqrt(add_3_add_0);
      {
        const int k = 0;
        {
          const int l = 0;
          const int col = l * 1024 + tx * 4;
          if (col < 768) {
            const Vec<float, 4> x_1_v_0__1 = from_words<Vec<float, 4>>(x_1_kept_0[k + l]);
            const Vec<float, 4> gamma_1_v_0 = from_words<Vec<float, 4>>(gamma_1_now_0[k + l]);
            const int at_0__1 = outer * 768 + col;
            Vec<float, 4> mul_15_w_0;
            #pragma unroll
            for (int lane = 0; lane < 4; ++lane) {
              const float x_1__1 = load_as<float>(x_1_v_0__1.v[lane]);
              const float mul_11 = hlo_multiply(x_1__1, rsqrt_1_rsqrt_0);
              const float gamma_1 = load_as<float>(gamma_1_v_0.v[lane]);
              const float mul_15 = hlo_multiply(mul_11, gamma_1);
              mul_15_w_0.v[lane] = store_as<float>(mul_15);
            }
            *reinterpret_cast<Vec<float, 4>*>(p_mul_15 + (at_0__1)) = mul_15_w_0;
          }
        }
      }
    }
  }
}
