#include "astitch.cuh"
// stitch_0: grid 196 x 512 threads, 128 B shared
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
extern "C" __global__ void __launch_bounds__(512, 2) stitch_0(
    const float* __restrict__ p_x_1,
    float* __restrict__ p_div_7,
    float* p_reduce_max_7_exponentials_partial0_0,
    float* p_reduce_max_7_exponentials_partial1_0,
    float* p_reduce_max_7_exponentials_0,
    float* p_reduce_max_7_exponentials_1,
    unsigned int* barrier) {
  ASTITCH_SHARED_ARENA(128);
  ASTITCH_SHARED(Reduce0::State, exchange_0_0, 0, 16);
  ASTITCH_SHARED(Reduce0::State, exchange_0_0__1, 0, 16);
  {  // loop 0: outer 1 / 1 threads, row 1 / 1 threads x 1, col 200001 / 512 threads x 2 x 1; 196 tasks; row-reduce, 1 rows < 264 blocks a wave: each row split over 196 blocks
    const int thread = threadIdx.x;
    const int tx = thread % 512;
    const int ty = thread / 512 % 1;
    const int to = thread / 512;
    const int first = blockIdx.x;
    Reduce0::State reduce_max_7_exponentials_state_0[1];
    #pragma unroll
    for (int i = 0; i < 1; ++i) reduce_max_7_exponentials_state_0[i] = Reduce0::identity();
    if (first < 196) {
      const int task = first;
      const int col_tile = task;
      {
        const int k = 0;
        #pragma unroll
        for (int l = 0; l < 2; ++l) {
          const int col = l * 512 + tx + col_tile * 1024;
          if (col < 200001) {
            const float x_1 = load_as<float>(p_x_1[col]);
            add_to_exponentials(reduce_max_7_exponentials_state_0[0], x_1);
          }
        }
      }
    }
    reduce_warps<Reduce0>(reduce_max_7_exponentials_state_0, exchange_0_0);
    __syncthreads();
    combine_warps<Reduce0, 512, true>(reduce_max_7_exponentials_state_0, exchange_0_0);
    if (first < 196) {
      if (tx < 1) {
        p_reduce_max_7_exponentials_partial0_0[first] = store_as<float>(reduce_max_7_exponentials_state_0[0].f0);
        p_reduce_max_7_exponentials_partial1_0[first] = store_as<float>(reduce_max_7_exponentials_state_0[0].f1);
      }
    }
  }
  ASTITCH_GLOBAL_BARRIER(barrier);  // Global: %reduce_max.7.exponentials before level 1
  {  // loop 1: outer 1 / 2 threads, row 1 / 1 threads x 1, col 196 / 256 threads x 1 x 1; 1 tasks; row-reduce: 2 rows a block, 256 threads a row
    const int thread = threadIdx.x;
    const int tx = thread % 256;
    const int ty = thread / 256 % 1;
    const int to = thread / 256;
    const int first = blockIdx.x;
    if (first < 1) {
      const int task = first;
      Reduce0::State reduce_max_7_exponentials_state_0__1[1];
      #pragma unroll
      for (int i = 0; i < 1; ++i) reduce_max_7_exponentials_state_0__1[i] = Reduce0::identity();
      {
        const int k = 0;
        {
          const int l = 0;
          const int col = l * 256 + tx;
          if (col < 196) {
            if (to < 1) {
              reduce_max_7_exponentials_state_0__1[0] = Reduce0::combine(reduce_max_7_exponentials_state_0__1[0], Reduce0::State{load_as<float>(p_reduce_max_7_exponentials_partial0_0[col]), load_as<float>(p_reduce_max_7_exponentials_partial1_0[col])});
            }
          }
        }
      }
      reduce_warps<Reduce0>(reduce_max_7_exponentials_state_0__1, exchange_0_0__1);
      __syncthreads();
      combine_warps<Reduce0, 256, true>(reduce_max_7_exponentials_state_0__1, exchange_0_0__1);
      const float reduce_max_7_exponentials_0 = reduce_max_7_exponentials_state_0__1[0].f0;
      if (to < 1 && tx < 1) {
        p_reduce_max_7_exponentials_0[0] = store_as<float>(reduce_max_7_exponentials_0);
      }
      const float reduce_max_7_exponentials_0__1 = reduce_max_7_exponentials_state_0__1[0].f1;
      if (to < 1 && tx < 1) {
        p_reduce_max_7_exponentials_1[0] = store_as<float>(reduce_max_7_exponentials_0__1);
      }
    }
  }
  ASTITCH_GLOBAL_BARRIER(barrier);  // Global: %reduce_max.7.exponentials, %reduce_max.7.exponentials before level 2
  {  // loop 2: outer 1 / 1 threads, row 1 / 1 threads x 1, col 200001 / 512 threads x 2 x 1; 196 tasks; row-reduce, 1 rows < 264 blocks a wave: each row split over 196 blocks
    const int thread = threadIdx.x;
    const int tx = thread % 512;
    const int ty = thread / 512 % 1;
    const int to = thread / 512;
    const int first = blockIdx.x;
    const float reduce_max_7_get_tuple_element_0 = load_as<float>(p_reduce_max_7_exponentials_0[0]);
    const float reduce_sum_7_get_tuple_element_0 = load_as<float>(p_reduce_max_7_exponentials_1[0]);
    const float reduce_sum_7_subtract_0 = hlo_subtract(reduce_max_7_get_tuple_element_0, reduce_max_7_get_tuple_element_0);
    const float reduce_sum_7_exponential_0 = hlo_exp(reduce_sum_7_subtract_0);
    const float reduce_sum_7_multiply_0 = hlo_multiply(reduce_sum_7_get_tuple_element_0, reduce_sum_7_exponential_0);
    if (first < 196) {
      const int task = first;
      const int col_tile = task;
      {
        const int k = 0;
        #pragma unroll
        for (int l = 0; l < 2; ++l) {
          const int col = l * 512 + tx + col_tile * 1024;
          if (col < 200001) {
            const float x_1__1 = load_as<float>(p_x_1[col]);
            const float sub_7 = hlo_subtract(x_1__1, reduce_max_7_get_tuple_element_0);
            const float exp_1 = hlo_exp(sub_7);
            const float div_7 = hlo_divide_shared(exp_1, reduce_sum_7_multiply_0);
            p_div_7[col] = store_as<float>(div_7);
          }
        }
      }
    }
  }
}
