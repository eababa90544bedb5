#include "astitch.cuh"
// stitch_0: grid 18 x 256 threads, 8192 B shared
//   jit(softmax)/reduce_sum
//   jit(softmax)/reduce_max
//   jit(softmax)/sub
//   jit(softmax)/exp
//   jit(softmax)/div
struct Reduce0 {
  struct State { float f0; float f1; };
  static __device__ __forceinline__ State identity() { return State{same_bits<float>(0xff800000u), 0.0f}; }
  static __device__ __forceinline__ State combine(const State a, const State b) {
    const float v4 = hlo_maximum(a.f0, b.f0);
    const bool v6 = hlo_compare_eq(a.f0, v4);
    const float v7 = hlo_subtract(a.f0, v4);
    const float v8 = hlo_exp(v7);
    const float v9 = (v6 ? 1.0f : v8);
    const float v10 = hlo_multiply(a.f1, v9);
    const bool v11 = hlo_compare_eq(b.f0, v4);
    const float v12 = hlo_subtract(b.f0, v4);
    const float v13 = hlo_exp(v12);
    const float v14 = (v11 ? 1.0f : v13);
    const float v15 = hlo_multiply(b.f1, v14);
    const float v16 = hlo_add(v10, v15);
    return State{v4, v16};
  }
  static __device__ __forceinline__ State shuffle(const State s, int mask) {
    return State{shuffle_value(s.f0, mask), shuffle_value(s.f1, mask)};
  }
};
extern "C" __global__ void __launch_bounds__(256) stitch_0(
    const float* __restrict__ p_x_1,
    float* __restrict__ p_div_7) {
  ASTITCH_SHARED_ARENA(8192);
  ASTITCH_SHARED(Reduce0::State, exchange_0_0, 0, 1024);
  {  // loop 0: outer 1 / 1 threads, row 16 / 8 threads x 2, col 24x96 / 32 threads x 1 x 4; 18 tasks; column-reduce: 8 rows x 32 threads a block
    const int thread = threadIdx.x;
    const int tx = thread % 32;
    const int ty = thread / 32 % 8;
    const int to = thread / 256;
    const int first = blockIdx.x;
    float x_1_kept_0[8];
    if (first < 18) {
      const int task = first;
      const int col_tile = task;
      Reduce0::State reduce_max_7_exponentials_state_0[4];
      #pragma unroll
      for (int i = 0; i < 4; ++i) reduce_max_7_exponentials_state_0[i] = Reduce0::identity();
      #pragma unroll
      for (int k = 0; k < 2; ++k) {
        const int row = k * 8 + ty;
        {
          const int l = 0;
          const int col = l * 128 + tx * 4 + col_tile * 128;
          const int at_0 = row * 2304 + col;
          const Vec<float, 4> x_1_v_0 = *reinterpret_cast<const Vec<float, 4>*>(p_x_1 + (at_0));
          #pragma unroll
          for (int lane = 0; lane < 4; ++lane) {
            const float x_1 = load_as<float>(x_1_v_0.v[lane]);
            x_1_kept_0[k * 4 + l * 4 + lane] = store_as<float>(x_1);
            reduce_max_7_exponentials_state_0[l * 4 + lane] = Reduce0::combine(reduce_max_7_exponentials_state_0[l * 4 + lane], Reduce0::State{x_1, 1.0f});
          }
        }
      }
      reduce_strided<Reduce0, 8, 32, 256, 4>(reduce_max_7_exponentials_state_0, exchange_0_0);
      #pragma unroll
      for (int k = 0; k < 2; ++k) {
        const int row = k * 8 + ty;
        {
          const int l = 0;
          const int col = l * 128 + tx * 4 + col_tile * 128;
          const int at_0__1 = row * 2304 + col;
          Vec<float, 4> div_7_w_0;
          #pragma unroll
          for (int lane = 0; lane < 4; ++lane) {
            const float x_1__1 = load_as<float>(x_1_kept_0[k * 4 + l * 4 + lane]);
            const float reduce_max_7_get_tuple_element_0 = reduce_max_7_exponentials_state_0[l * 4 + lane].f0;
            const float sub_7 = hlo_subtract(x_1__1, reduce_max_7_get_tuple_element_0);
            const float exp_1 = hlo_exp(sub_7);
            const float reduce_sum_7_get_tuple_element_0 = reduce_max_7_exponentials_state_0[l * 4 + lane].f1;
            const float reduce_sum_7_subtract_0 = hlo_subtract(reduce_max_7_get_tuple_element_0, reduce_max_7_get_tuple_element_0);
            const float reduce_sum_7_exponential_0 = hlo_exp(reduce_sum_7_subtract_0);
            const float reduce_sum_7_multiply_0 = hlo_multiply(reduce_sum_7_get_tuple_element_0, reduce_sum_7_exponential_0);
            const float div_7 = hlo_divide(exp_1, reduce_sum_7_multiply_0);
            div_7_w_0.v[lane] = store_as<float>(div_7);
          }
          *reinterpret_cast<Vec<float, 4>*>(p_div_7 + (at_0__1)) = div_7_w_0;
        }
      }
    }
  }
}
