#include "astitch.cuh"
// stitch_0: grid 100 x 512 threads, 64 B shared
//   jit(softmax)/reduce_max
//   jit(softmax)/sub
//   jit(softmax)/exp
//   jit(softmax)/reduce_sum
//   jit(softmax)/div
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
struct Reduce1 {
  struct State { float f0; };
  static __device__ __forceinline__ State identity() { return State{0.0f}; }
  static __device__ __forceinline__ State combine(const State a, const State b) {
    const float v2 = hlo_add(a.f0, b.f0);
    return State{v2};
  }
  static __device__ __forceinline__ State shuffle(const State s, int mask) {
    return State{shuffle_value(s.f0, mask)};
  }
};
extern "C" __global__ void __launch_bounds__(512, 2) stitch_0(
    const float* __restrict__ p_x_1,
    float* __restrict__ p_div_7,
    float* p_reduce_max_7_partial0_0,
    float* p_reduce_sum_7_partial0_0,
    unsigned int* barrier) {
  ASTITCH_SHARED_ARENA(64);
  ASTITCH_SHARED(Reduce0::State, exchange_0_0, 0, 16);
  ASTITCH_SHARED(Reduce1::State, exchange_1_0, 0, 16);
  {  // loop 0: outer 4 / 1 threads, row 1 / 1 threads x 1, col 50000 / 512 threads x 1 x 4; 100 tasks; row-reduce, 4 rows < 264 blocks a wave: each row split over 25 blocks
    const int thread = threadIdx.x;
    const int tx = thread % 512;
    const int ty = thread / 512 % 1;
    const int to = thread / 512;
    const int first = blockIdx.x;
    if (first < 100) {
      const int task = first;
      const int outer = ((task) / 25);
      const int col_tile = ((task) % 25);
      Reduce0::State reduce_max_7_state_0[1];
      #pragma unroll
      for (int i = 0; i < 1; ++i) reduce_max_7_state_0[i] = Reduce0::identity();
      {
        const int k = 0;
        {
          const int l = 0;
          const int col = l * 2048 + tx * 4 + col_tile * 2048;
          if (col < 50000) {
            const int at_0 = outer * 50000 + col;
            const Vec<float, 4> x_1_v_0 = *reinterpret_cast<const Vec<float, 4>*>(p_x_1 + (at_0));
            #pragma unroll
            for (int lane = 0; lane < 4; ++lane) {
              const float x_1 = load_as<float>(x_1_v_0.v[lane]);
              reduce_max_7_state_0[0] = Reduce0::combine(reduce_max_7_state_0[0], Reduce0::State{x_1});
            }
          }
        }
      }
      reduce_warps<Reduce0>(reduce_max_7_state_0, exchange_0_0);
      __syncthreads();
      combine_warps<Reduce0, 512, false>(reduce_max_7_state_0, exchange_0_0);
      if (tx < 1) {
        p_reduce_max_7_partial0_0[col_tile * 4 + outer] = store_as<float>(reduce_max_7_state_0[0].f0);
      }
    }
  }
  ASTITCH_GLOBAL_BARRIER(barrier);  // Global: %reduce_max.7 before level 1
  {  // loop 1: outer 4 / 1 threads, row 1 / 1 threads x 1, col 50000 / 512 threads x 1 x 4; 100 tasks; row-reduce, 4 rows < 264 blocks a wave: each row split over 25 blocks
    const int thread = threadIdx.x;
    const int tx = thread % 512;
    const int ty = thread / 512 % 1;
    const int to = thread / 512;
    const int first = blockIdx.x;
    if (first < 100) {
      const int task = first;
      const int outer = ((task) / 25);
      const int col_tile = ((task) % 25);
      Reduce1::State reduce_sum_7_state_0[1];
      #pragma unroll
      for (int i = 0; i < 1; ++i) reduce_sum_7_state_0[i] = Reduce1::identity();
      Reduce0::State reduce_max_7_sum_0[1];
      #pragma unroll
      for (int i = 0; i < 1; ++i) reduce_max_7_sum_0[i] = Reduce0::identity();
      #pragma unroll 8
      for (int part = 0; part < 25; ++part) {
        reduce_max_7_sum_0[0] = Reduce0::combine(reduce_max_7_sum_0[0], Reduce0::State{load_as<float>(p_reduce_max_7_partial0_0[part * 4 + outer])});
      }
      const float reduce_max_7 = reduce_max_7_sum_0[0].f0;
      {
        const int k = 0;
        {
          const int l = 0;
          const int col = l * 2048 + tx * 4 + col_tile * 2048;
          if (col < 50000) {
            const int at_0__1 = outer * 50000 + col;
            const Vec<float, 4> x_1_v_0__1 = *reinterpret_cast<const Vec<float, 4>*>(p_x_1 + (at_0__1));
            #pragma unroll
            for (int lane = 0; lane < 4; ++lane) {
              const float x_1__1 = load_as<float>(x_1_v_0__1.v[lane]);
              const float sub_7 = hlo_subtract(x_1__1, reduce_max_7);
              const float exp_1 = hlo_exp(sub_7);
              reduce_sum_7_state_0[0] = Reduce1::combine(reduce_sum_7_state_0[0], Reduce1::State{exp_1});
            }
          }
        }
      }
      reduce_warps<Reduce1>(reduce_sum_7_state_0, exchange_1_0);
      __syncthreads();
      combine_warps<Reduce1, 512, false>(reduce_sum_7_state_0, exchange_1_0);
      if (tx < 1) {
        p_reduce_sum_7_partial0_0[col_tile * 4 + outer] = store_as<float>(reduce_sum_7_state_0[0].f0);
      }
    }
  }
  ASTITCH_GLOBAL_BARRIER(barrier);  // Global: %reduce_max.7, %reduce_sum.7 before level 2
  {  // loop 2: outer 4 / 1 threads, row 1 / 1 threads x 1, col 50000 / 512 threads x 1 x 4; 100 tasks; row-reduce, 4 rows < 264 blocks a wave: each row split over 25 blocks
    const int thread = threadIdx.x;
    const int tx = thread % 512;
    const int ty = thread / 512 % 1;
    const int to = thread / 512;
    const int first = blockIdx.x;
    if (first < 100) {
      const int task = first;
      const int outer = ((task) / 25);
      const int col_tile = ((task) % 25);
      Reduce0::State reduce_max_7_sum_0__1[1];
      #pragma unroll
      for (int i = 0; i < 1; ++i) reduce_max_7_sum_0__1[i] = Reduce0::identity();
      #pragma unroll 8
      for (int part = 0; part < 25; ++part) {
        reduce_max_7_sum_0__1[0] = Reduce0::combine(reduce_max_7_sum_0__1[0], Reduce0::State{load_as<float>(p_reduce_max_7_partial0_0[part * 4 + outer])});
      }
      const float reduce_max_7__1 = reduce_max_7_sum_0__1[0].f0;
      Reduce1::State reduce_sum_7_sum_0[1];
      #pragma unroll
      for (int i = 0; i < 1; ++i) reduce_sum_7_sum_0[i] = Reduce1::identity();
      #pragma unroll 8
      for (int part = 0; part < 25; ++part) {
        reduce_sum_7_sum_0[0] = Reduce1::combine(reduce_sum_7_sum_0[0], Reduce1::State{load_as<float>(p_reduce_sum_7_partial0_0[part * 4 + outer])});
      }
      const float reduce_sum_7 = reduce_sum_7_sum_0[0].f0;
      {
        const int k = 0;
        {
          const int l = 0;
          const int col = l * 2048 + tx * 4 + col_tile * 2048;
          if (col < 50000) {
            const int at_0__2 = outer * 50000 + col;
            const Vec<float, 4> x_1_v_0__2 = *reinterpret_cast<const Vec<float, 4>*>(p_x_1 + (at_0__2));
            Vec<float, 4> div_7_w_0;
            #pragma unroll
            for (int lane = 0; lane < 4; ++lane) {
              const float x_1__2 = load_as<float>(x_1_v_0__2.v[lane]);
              const float sub_7__1 = hlo_subtract(x_1__2, reduce_max_7__1);
              const float exp_1__1 = hlo_exp(sub_7__1);
              const float div_7 = hlo_divide(exp_1__1, reduce_sum_7);
              div_7_w_0.v[lane] = store_as<float>(div_7);
            }
            *reinterpret_cast<Vec<float, 4>*>(p_div_7 + (at_0__2)) = div_7_w_0;
          }
        }
      }
    }
  }
}
