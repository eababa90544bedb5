#include "astitch.cuh"
// stitch_0: grid 16 x 512 threads, 64 B shared
//   jit(quantise_int8)/abs
//   jit(quantise_int8)/reduce_max
//   jit(quantise_int8)/div
//   round
//   max
//   min
//   jit(quantise_int8)/convert_element_type
struct Reduce0 {
  struct State { float f0; };
  static __device__ __forceinline__ State identity() { return State{same_bits<float>(0xff800000u)}; }
  static __device__ __forceinline__ State combine(const State a, const State b) {
    const float v2 = hlo_maximum(a.f0, b.f0);
    return State{v2};
  }
  static __device__ __forceinline__ State shuffle(const State s, int mask) {
    return State{shuffle_value(s.f0, mask)};
  }
};
extern "C" __global__ void __launch_bounds__(512, 2) stitch_0(
    const float* __restrict__ p_x_1,
    float* __restrict__ p_div_3,
    signed char* __restrict__ p_convert_element_type_5,
    float* p_reduce_max_7_partial0_0,
    float* p_reduce_max_7,
    unsigned int* barrier) {
  ASTITCH_SHARED_ARENA(64);
  ASTITCH_SHARED(Reduce0::State, exchange_0_0, 0, 16);
  {  // loop 0: outer 1 / 1 threads, row 1 / 1 threads x 1, col 64x500 / 512 threads x 1 x 4; 16 tasks; row-reduce, 1 rows < 264 blocks a wave: each row split over 16 blocks
    const int thread = threadIdx.x;
    const int tx = thread % 512;
    const int ty = thread / 512 % 1;
    const int to = thread / 512;
    const int first = blockIdx.x;
    Reduce0::State reduce_max_7_state_0[1];
    #pragma unroll
    for (int i = 0; i < 1; ++i) reduce_max_7_state_0[i] = Reduce0::identity();
    if (first < 16) {
      const int task = first;
      const int col_tile = task;
      {
        const int k = 0;
        {
          const int l = 0;
          const int col = l * 2048 + tx * 4 + col_tile * 2048;
          if (col < 32000) {
            const Vec<float, 4> x_1_v_0 = *reinterpret_cast<const Vec<float, 4>*>(p_x_1 + (col));
            #pragma unroll
            for (int lane = 0; lane < 4; ++lane) {
              const float x_1 = load_as<float>(x_1_v_0.v[lane]);
              const float abs_1 = hlo_abs(x_1);
              reduce_max_7_state_0[0] = Reduce0::combine(reduce_max_7_state_0[0], Reduce0::State{abs_1});
            }
          }
        }
      }
    }
    reduce_warps<Reduce0>(reduce_max_7_state_0, exchange_0_0);
    __syncthreads();
    combine_warps<Reduce0, 512, false>(reduce_max_7_state_0, exchange_0_0);
    if (first < 16) {
      if (tx < 1) {
        p_reduce_max_7_partial0_0[first] = store_as<float>(reduce_max_7_state_0[0].f0);
      }
    }
  }
  ASTITCH_GLOBAL_BARRIER(barrier);  // Global: %reduce_max.7 before level 1
  {  // loop 1: outer 1 / 128 threads, row 1 / 1 threads x 1, col 16 / 4 threads x 1 x 4; 1 tasks; row-reduce: 128 rows a block, 4 threads a row
    const int thread = threadIdx.x;
    const int tx = thread % 4;
    const int ty = thread / 4 % 1;
    const int to = thread / 4;
    const int first = blockIdx.x;
    if (first < 1) {
      const int task = first;
      Reduce0::State reduce_max_7_state_0__1[1];
      #pragma unroll
      for (int i = 0; i < 1; ++i) reduce_max_7_state_0__1[i] = Reduce0::identity();
      {
        const int k = 0;
        {
          const int l = 0;
          const int col = l * 16 + tx * 4;
          #pragma unroll
          for (int lane = 0; lane < 4; ++lane) {
            if (to < 1) {
              reduce_max_7_state_0__1[0] = Reduce0::combine(reduce_max_7_state_0__1[0], Reduce0::State{load_as<float>(p_reduce_max_7_partial0_0[col + lane])});
            }
          }
        }
      }
      reduce_lanes<Reduce0, 4, 1>(reduce_max_7_state_0__1);
      const float reduce_max_7 = reduce_max_7_state_0__1[0].f0;
      if (to < 1 && tx < 1) {
        p_reduce_max_7[0] = store_as<float>(reduce_max_7);
      }
    }
  }
  ASTITCH_GLOBAL_BARRIER(barrier);  // Global: %reduce_max.7, %reduce_max.7 before level 2
  {  // loop 2: outer 1 / 1 threads, row 1 / 1 threads x 1, col 64x500 / 512 threads x 1 x 4; 16 tasks; row-reduce, 1 rows < 264 blocks a wave: each row split over 16 blocks
    const int thread = threadIdx.x;
    const int tx = thread % 512;
    const int ty = thread / 512 % 1;
    const int to = thread / 512;
    const int first = blockIdx.x;
    const float reduce_max_7__1 = load_as<float>(p_reduce_max_7[0]);
    const float div_3 = hlo_divide(reduce_max_7__1, 127.0f);
    if (first < 16) {
      const int task = first;
      const int col_tile = task;
      if (tx < 1 && col_tile < 1) {
        p_div_3[0] = store_as<float>(div_3);
      }
      {
        const int k = 0;
        {
          const int l = 0;
          const int col = l * 2048 + tx * 4 + col_tile * 2048;
          if (col < 32000) {
            const Vec<float, 4> x_1_v_0__1 = *reinterpret_cast<const Vec<float, 4>*>(p_x_1 + (col));
            Vec<signed char, 4> convert_element_type_5_w_0;
            #pragma unroll
            for (int lane = 0; lane < 4; ++lane) {
              const float x_1__1 = load_as<float>(x_1_v_0__1.v[lane]);
              const float div_5 = hlo_divide(x_1__1, div_3);
              const float round_1 = hlo_round_nearest_even(div_5);
              const float max_3 = hlo_maximum(-127.0f, round_1);
              const float min_3 = hlo_minimum(127.0f, max_3);
              const signed char convert_element_type_5 = hlo_convert<signed char, float>(min_3);
              convert_element_type_5_w_0.v[lane] = store_as<signed char>(convert_element_type_5);
            }
            *reinterpret_cast<Vec<signed char, 4>*>(p_convert_element_type_5 + (col)) = convert_element_type_5_w_0;
          }
        }
      }
    }
  }
}
