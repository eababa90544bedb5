#include "astitch.cuh"
// stitch_0: grid 8 x 256 threads, 96 B shared
//   jit(cumsum_softmax)/reduce_max
//   jit(cumsum_softmax)/sub
//   jit(cumsum_softmax)/exp
//   jit(cumsum_softmax)/reduce_sum
//   jit(cumsum_softmax)/div
//   reduce_window_sum
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
struct Reduce1 {
  static constexpr bool commutative = true;
  static constexpr Joint joint = JOINT_NONE;
  struct State { float f0; };
  static __device__ __forceinline__ State identity() { return State{same_bits<float>(0xff800000u)}; }
  static __device__ __forceinline__ State combine(const State a, const State b) {
    const float v2 = hlo_maximum(a.f0, b.f0);
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
    float* __restrict__ p_reduce_window_sum_7) {
  assume_threads<256>();
  ASTITCH_SHARED_ARENA(96);
  ASTITCH_SHARED(Reduce1::State, exchange_1_0, 64, 8);
  ASTITCH_SHARED(Reduce0::State, exchange_0_1, 32, 8);
  ASTITCH_SHARED(Reduce0::State, exchange_0_0, 0, 8);
  {  // loop 0: outer 8 / 1 threads, row 1 / 1 threads x 1, col 1000 / 256 threads x 1 x 4; 8 tasks; running reduction: 1 rows a block, 256 threads a row
    const int thread = threadIdx.x;
    const int tx = threadIdx.x;
    const int ty = 0;
    const int to = 0;
    const int first = blockIdx.x;
    words_of<Vec<float, 4>>::type x_1_kept_0[1];
    float exp_1_kept_0[4];
    {
      const int task = first;
      const int outer = task;
      Reduce1::State reduce_max_7_state_0[1];
      #pragma unroll
      for (int i = 0; i < 1; ++i) reduce_max_7_state_0[i] = Reduce1::identity();
      {
        const int k = 0;
        {
          const int l = 0;
          const int col = l * 1024 + tx * 4;
          if (col < 1000) {
            const int at_0 = outer * 1000 + col;
            const Vec<float, 4> x_1_v_0 = *reinterpret_cast<const Vec<float, 4>*>(p_x_1 + (at_0));
            x_1_kept_0[k + l] = to_words(x_1_v_0);
            #pragma unroll
            for (int lane = 0; lane < 4; ++lane) {
              const float x_1 = load_as<float>(x_1_v_0.v[lane]);
              reduce_max_7_state_0[0] = Reduce1::combine(reduce_max_7_state_0[0], Reduce1::State{x_1});
            }
          }
        }
      }
      reduce_warps<Reduce1>(reduce_max_7_state_0, exchange_1_0);
      __syncthreads();
      combine_warps<Reduce1, 256, false>(reduce_max_7_state_0, exchange_1_0);
      Reduce0::State reduce_sum_7_state_0[1];
      #pragma unroll
      for (int i = 0; i < 1; ++i) reduce_sum_7_state_0[i] = Reduce0::identity();
      const float reduce_max_7 = reduce_max_7_state_0[0].f0;
      {
        const int k = 0;
        {
          const int l = 0;
          const int col = l * 1024 + tx * 4;
          if (col < 1000) {
            const Vec<float, 4> x_1_v_0__1 = from_words<Vec<float, 4>>(x_1_kept_0[k + l]);
            #pragma unroll
            for (int lane = 0; lane < 4; ++lane) {
              const float x_1__1 = load_as<float>(x_1_v_0__1.v[lane]);
              const float sub_7 = hlo_subtract(x_1__1, reduce_max_7);
              const float exp_1 = hlo_exp(sub_7);
              exp_1_kept_0[k * 4 + l * 4 + lane] = exp_1;
              reduce_sum_7_state_0[0] = Reduce0::combine(reduce_sum_7_state_0[0], Reduce0::State{exp_1});
            }
          }
        }
      }
      reduce_warps<Reduce0>(reduce_sum_7_state_0, exchange_0_1);
      __syncthreads();
      combine_warps<Reduce0, 256, false>(reduce_sum_7_state_0, exchange_0_1);
      Reduce0::State reduce_window_sum_7_state_0[4];
      #pragma unroll
      for (int i = 0; i < 4; ++i) reduce_window_sum_7_state_0[i] = Reduce0::identity();
      const float reduce_sum_7 = reduce_sum_7_state_0[0].f0;
      {
        const int k = 0;
        {
          const int l = 0;
          const int col = l * 1024 + tx * 4;
          if (col < 1000) {
            #pragma unroll
            for (int lane = 0; lane < 4; ++lane) {
              const float exp_1__1 = exp_1_kept_0[k * 4 + l * 4 + lane];
              const float div_7 = hlo_divide_shared(exp_1__1, reduce_sum_7);
              reduce_window_sum_7_state_0[l * 4 + lane] = Reduce0::combine(reduce_window_sum_7_state_0[l * 4 + lane], Reduce0::State{div_7});
            }
          }
        }
      }
      scan_row<Reduce0, 1, 4, 256, false>(reduce_window_sum_7_state_0, exchange_0_0, no_carry());
      {
        const int l = 0;
        const int col = l * 1024 + tx * 4;
        if (col < 1000) {
          const int at_0__1 = outer * 1000 + col;
          Vec<float, 4> reduce_window_sum_7_w_0;
          #pragma unroll
          for (int lane = 0; lane < 4; ++lane) {
            const float reduce_window_sum_7 = reduce_window_sum_7_state_0[l * 4 + lane].f0;
            reduce_window_sum_7_w_0.v[lane] = store_as<float>(reduce_window_sum_7);
          }
          *reinterpret_cast<Vec<float, 4>*>(p_reduce_window_sum_7 + (at_0__1)) = reduce_window_sum_7_w_0;
        }
      }
    }
  }
}
