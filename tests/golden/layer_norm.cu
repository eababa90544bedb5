#include "astitch.cuh"
// stitch_0: grid 64 x 256 threads, 64 B shared
//   jit(layer_norm)/reduce_sum
//   jit(layer_norm)/div
//   jit(layer_norm)/sub
//   jit(layer_norm)/square
//   jit(layer_norm)/add
//   jit(layer_norm)/rsqrt
//   jit(layer_norm)/mul
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
    const float* __restrict__ p_beta_1,
    float* __restrict__ p_add_11) {
  assume_threads<256>();
  ASTITCH_SHARED_ARENA(64);
  ASTITCH_SHARED(Reduce0::State, exchange_0_0, 0, 8);
  ASTITCH_SHARED(Reduce0::State, exchange_0_1, 32, 8);
  {  // loop 0: outer 64 / 1 threads, row 1 / 1 threads x 1, col 768 / 256 threads x 1 x 4; 64 tasks; row-reduce: a block a row
    const int thread = threadIdx.x;
    const int tx = threadIdx.x;
    const int ty = 0;
    const int to = 0;
    const int first = blockIdx.x;
    words_of<Vec<float, 4>>::type x_1_kept_0[1];
    float sub_15_kept_0[4];
    words_of<Vec<float, 4>>::type gamma_1_now_0[1];
    words_of<Vec<float, 4>>::type beta_1_now_0[1];
    {
      const int task = first;
      const int outer = task;
      Reduce0::State reduce_sum_14_state_0[1];
      #pragma unroll
      for (int i = 0; i < 1; ++i) reduce_sum_14_state_0[i] = Reduce0::identity();
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
            beta_1_now_0[k + l] = *reinterpret_cast<const words_of<Vec<float, 4>>::type*>(p_beta_1 + (col));
            #pragma unroll
            for (int lane = 0; lane < 4; ++lane) {
              const float x_1 = load_as<float>(x_1_v_0.v[lane]);
              reduce_sum_14_state_0[0] = Reduce0::combine(reduce_sum_14_state_0[0], Reduce0::State{x_1});
            }
          }
        }
      }
      reduce_warps<Reduce0>(reduce_sum_14_state_0, exchange_0_0);
      __syncthreads();
      combine_warps<Reduce0, 256, false>(reduce_sum_14_state_0, exchange_0_0);
      Reduce0::State reduce_sum_15_state_0[1];
      #pragma unroll
      for (int i = 0; i < 1; ++i) reduce_sum_15_state_0[i] = Reduce0::identity();
      const float reduce_sum_14 = reduce_sum_14_state_0[0].f0;
      const float div_2_divide_0 = hlo_divide_shared(reduce_sum_14, 768.0f);
      {
        const int k = 0;
        {
          const int l = 0;
          const int col = l * 1024 + tx * 4;
          if (col < 768) {
            const Vec<float, 4> x_1_v_0__1 = from_words<Vec<float, 4>>(x_1_kept_0[k + l]);
            #pragma unroll
            for (int lane = 0; lane < 4; ++lane) {
              const float x_1__1 = load_as<float>(x_1_v_0__1.v[lane]);
              const float sub_15 = hlo_subtract(x_1__1, div_2_divide_0);
              sub_15_kept_0[k * 4 + l * 4 + lane] = sub_15;
              const float square_1 = hlo_multiply(sub_15, sub_15);
              reduce_sum_15_state_0[0].f0 = hlo_multiply_add(sub_15, sub_15, reduce_sum_15_state_0[0].f0);
            }
          }
        }
      }
      reduce_warps<Reduce0>(reduce_sum_15_state_0, exchange_0_1);
      __syncthreads();
      combine_warps<Reduce0, 256, false>(reduce_sum_15_state_0, exchange_0_1);
      const float reduce_sum_15 = reduce_sum_15_state_0[0].f0;
      const float div_3_divide_0 = hlo_divide_shared(reduce_sum_15, 768.0f);
      const float add_7_add_0 = hlo_add(div_3_divide_0, 1e-06f);
      const float rsqrt_1_rsqrt_0 = hlo_rsqrt(add_7_add_0);
      {
        const int k = 0;
        {
          const int l = 0;
          const int col = l * 1024 + tx * 4;
          if (col < 768) {
            const Vec<float, 4> gamma_1_v_0 = from_words<Vec<float, 4>>(gamma_1_now_0[k + l]);
            const Vec<float, 4> beta_1_v_0 = from_words<Vec<float, 4>>(beta_1_now_0[k + l]);
            const int at_0__1 = outer * 768 + col;
            Vec<float, 4> add_11_w_0;
            #pragma unroll
            for (int lane = 0; lane < 4; ++lane) {
              const float sub_15__1 = sub_15_kept_0[k * 4 + l * 4 + lane];
              const float mul_11 = hlo_multiply(sub_15__1, rsqrt_1_rsqrt_0);
              const float gamma_1 = load_as<float>(gamma_1_v_0.v[lane]);
              const float mul_15 = hlo_multiply(mul_11, gamma_1);
              const float beta_1 = load_as<float>(beta_1_v_0.v[lane]);
              const float add_11 = hlo_add(mul_15, beta_1);
              add_11_w_0.v[lane] = store_as<float>(add_11);
            }
            *reinterpret_cast<Vec<float, 4>*>(p_add_11 + (at_0__1)) = add_11_w_0;
          }
        }
      }
    }
  }
}
