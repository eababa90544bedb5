#include "astitch.cuh"
// stitch_0: grid 64 x 128 threads, 32 B shared
//   jit(layer_norm)/convert_element_type
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
extern "C" __global__ void __launch_bounds__(128, 1) stitch_0(
    const bf16* __restrict__ p_x_1,
    const bf16* __restrict__ p_gamma_1,
    const bf16* __restrict__ p_beta_1,
    bf16* __restrict__ p_add_11) {
  assume_threads<128>();
  ASTITCH_SHARED_ARENA(32);
  ASTITCH_SHARED(Reduce0::State, exchange_0_0, 0, 4);
  ASTITCH_SHARED(Reduce0::State, exchange_0_1, 16, 4);
  {  // loop 0: outer 64 / 1 threads, row 1 / 1 threads x 1, col 768 / 128 threads x 1 x 8; 64 tasks; row-reduce: a block a row
    const int thread = threadIdx.x;
    const int tx = threadIdx.x;
    const int ty = 0;
    const int to = 0;
    const int first = blockIdx.x;
    words_of<Vec<bf16, 8>>::type x_1_kept_0[1];
    words_of<Vec<bf16, 8>>::type gamma_1_now_0[1];
    words_of<Vec<bf16, 8>>::type beta_1_now_0[1];
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
          const int col = l * 1024 + tx * 8;
          if (col < 768) {
            const int at_0 = outer * 768 + col;
            const Vec<bf16, 8> x_1_v_0 = *reinterpret_cast<const Vec<bf16, 8>*>(p_x_1 + (at_0));
            x_1_kept_0[k + l] = to_words(x_1_v_0);
            gamma_1_now_0[k + l] = *reinterpret_cast<const words_of<Vec<bf16, 8>>::type*>(p_gamma_1 + (col));
            beta_1_now_0[k + l] = *reinterpret_cast<const words_of<Vec<bf16, 8>>::type*>(p_beta_1 + (col));
            #pragma unroll
            for (int lane = 0; lane < 8; ++lane) {
              const float x_1 = bf16_lane(x_1_v_0, lane);
              const float convert_element_type_2 = hlo_convert<float, bf16>(x_1);
              reduce_sum_14_state_0[0] = Reduce0::combine(reduce_sum_14_state_0[0], Reduce0::State{convert_element_type_2});
            }
          }
        }
      }
      reduce_warps<Reduce0>(reduce_sum_14_state_0, exchange_0_0);
      __syncthreads();
      combine_warps<Reduce0, 128, false>(reduce_sum_14_state_0, exchange_0_0);
      Reduce0::State reduce_sum_15_state_0[1];
      #pragma unroll
      for (int i = 0; i < 1; ++i) reduce_sum_15_state_0[i] = Reduce0::identity();
      const float reduce_sum_14 = reduce_sum_14_state_0[0].f0;
      const float div_2_divide_0 = hlo_divide_shared(reduce_sum_14, 768.0f);
      {
        const int k = 0;
        {
          const int l = 0;
          const int col = l * 1024 + tx * 8;
          if (col < 768) {
            const Vec<bf16, 8> x_1_v_0__1 = from_words<Vec<bf16, 8>>(x_1_kept_0[k + l]);
            #pragma unroll
            for (int lane = 0; lane < 8; ++lane) {
              const float x_1__1 = bf16_lane(x_1_v_0__1, lane);
              const float convert_element_type_2__1 = hlo_convert<float, bf16>(x_1__1);
              const float sub_15 = hlo_subtract(convert_element_type_2__1, div_2_divide_0);
              const float square_1 = hlo_multiply(sub_15, sub_15);
              reduce_sum_15_state_0[0].f0 = hlo_multiply_add(sub_15, sub_15, reduce_sum_15_state_0[0].f0);
            }
          }
        }
      }
      reduce_warps<Reduce0>(reduce_sum_15_state_0, exchange_0_1);
      __syncthreads();
      combine_warps<Reduce0, 128, false>(reduce_sum_15_state_0, exchange_0_1);
      const float reduce_sum_15 = reduce_sum_15_state_0[0].f0;
      const float div_3_divide_0 = hlo_divide_shared(reduce_sum_15, 768.0f);
      const float add_7_add_0 = hlo_add(div_3_divide_0, 1e-06f);
      const float rsqrt_1_rsqrt_0 = hlo_rsqrt(add_7_add_0);
      {
        const int k = 0;
        {
          const int l = 0;
          const int col = l * 1024 + tx * 8;
          if (col < 768) {
            const Vec<bf16, 8> x_1_v_0__2 = from_words<Vec<bf16, 8>>(x_1_kept_0[k + l]);
            const Vec<bf16, 8> gamma_1_v_0 = from_words<Vec<bf16, 8>>(gamma_1_now_0[k + l]);
            const Vec<bf16, 8> beta_1_v_0 = from_words<Vec<bf16, 8>>(beta_1_now_0[k + l]);
            const int at_0__1 = outer * 768 + col;
            Lanes<bf16, 8> add_11_w_0;
            #pragma unroll
            for (int lane = 0; lane < 8; ++lane) {
              const float x_1__2 = bf16_lane(x_1_v_0__2, lane);
              const float convert_element_type_2__2 = hlo_convert<float, bf16>(x_1__2);
              const float sub_15__1 = hlo_subtract(convert_element_type_2__2, div_2_divide_0);
              const float mul_11 = hlo_multiply(sub_15__1, rsqrt_1_rsqrt_0);
              const float convert_element_type_3 = hlo_convert<bf16, float>(mul_11);
              const float gamma_1 = bf16_lane(gamma_1_v_0, lane);
              const float mul_15 = round_to<bf16>(hlo_multiply(convert_element_type_3, gamma_1));
              const float beta_1 = bf16_lane(beta_1_v_0, lane);
              const float add_11 = hlo_add(mul_15, beta_1);
              add_11_w_0.v[lane] = add_11;
            }
            store_lanes(p_add_11 + (at_0__1), add_11_w_0);
          }
        }
      }
    }
  }
}
