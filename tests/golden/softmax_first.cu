#include "astitch.cuh"
// stitch_0: grid 18 x 256 threads, 8448 B shared
//   jit(softmax)/reduce_sum
//   jit(softmax)/reduce_max
//   jit(softmax)/sub
//   jit(softmax)/exp
//   jit(softmax)/div
struct Reduce0 {
  static constexpr bool commutative = false;
  static constexpr Joint joint = JOINT_EXPONENTIALS;
  struct State { float f0; float f1; };
  static __device__ __forceinline__ State identity() { return State{same_bits<float>(0xff800000u), 0.0f}; }
  static __device__ __forceinline__ State combine(const State a, const State b) {
    return join_exponentials(a, b);
  }
  static __device__ __forceinline__ State take(const State s, int lane) {
    return State{value_of_lane(s.f0, lane), value_of_lane(s.f1, lane)};
  }
  static __device__ __forceinline__ State shuffle(const State s, int mask) {
    return State{shuffle_value(s.f0, mask), shuffle_value(s.f1, mask)};
  }
};
extern "C" __global__ void __launch_bounds__(256, 1) stitch_0(
    const float* __restrict__ p_x_1,
    float* __restrict__ p_div_7) {
  assume_threads<256>();
  ASTITCH_SHARED_ARENA(8448);
  ASTITCH_SHARED(Reduce0::State, exchange_0_0, 0, 1056);
  {  // loop 0: outer 1 / 1 threads, row 16 / 8 threads x 2, col 24x96 / 32 threads x 1 x 4; 18 tasks; column-reduce: 8 rows x 32 threads a block
    const int thread = threadIdx.x;
    const int tx = threadIdx.x % 32;
    const int ty = threadIdx.x / 32;
    const int to = 0;
    const int first = blockIdx.x;
    words_of<Vec<float, 4>>::type x_1_kept_0[2];
    {
      const int task = first;
      const int col_tile = task;
      Reduce0::State reduce_max_7_exponentials_state_0[4];
      #pragma unroll
      for (int i = 0; i < 4; ++i) reduce_max_7_exponentials_state_0[i] = Reduce0::identity();
      #pragma unroll
      for (int turn = 0; turn < 2; ++turn) {
        const int k = turn;
        const int row = k * 8 + ty;
        {
          const int l = 0;
          const int col = l * 128 + tx * 4 + col_tile * 128;
          const int at_0 = row * 2304 + col;
          const Vec<float, 4> x_1_v_0 = *reinterpret_cast<const Vec<float, 4>*>(p_x_1 + (at_0));
          x_1_kept_0[k + l] = to_words(x_1_v_0);
          #pragma unroll
          for (int lane = 0; lane < 4; ++lane) {
            const float x_1 = load_as<float>(x_1_v_0.v[lane]);
            add_to_exponentials(reduce_max_7_exponentials_state_0[l * 4 + lane], x_1);
          }
        }
      }
      reduce_strided<Reduce0, 8, 32, 256, 4, true, false>(reduce_max_7_exponentials_state_0, exchange_0_0);
      #pragma unroll
      for (int k = 0; k < 2; ++k) {
        const int row = k * 8 + ty;
        {
          const int l = 0;
          const int col = l * 128 + tx * 4 + col_tile * 128;
          const Vec<float, 4> x_1_v_0__1 = from_words<Vec<float, 4>>(x_1_kept_0[k + l]);
          const int at_0__1 = row * 2304 + col;
          Vec<float, 4> div_7_w_0;
          #pragma unroll
          for (int lane = 0; lane < 4; ++lane) {
            const float x_1__1 = load_as<float>(x_1_v_0__1.v[lane]);
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
