#include "astitch.cuh"
// stitch_0: grid 24 x 128 threads, 64 B shared
//   jit(softmax)/reduce_max
//   jit(softmax)/sub
//   jit(softmax)/exp
//   jit(softmax)/reduce_sum
//   jit(softmax)/div
struct Reduce0 {
  static constexpr bool commutative = true;
  static constexpr Joint joint = JOINT_NONE;
  struct State { double f0; };
  static __device__ __forceinline__ State identity() { return State{same_bits<double>(0xfff0000000000000ull)}; }
  static __device__ __forceinline__ State combine(const State a, const State b) {
    const double v2 = hlo_maximum(a.f0, b.f0);
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
  struct State { double f0; };
  static __device__ __forceinline__ State identity() { return State{0.0}; }
  static __device__ __forceinline__ State combine(const State a, const State b) {
    const double v2 = hlo_add(a.f0, b.f0);
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
    const double* __restrict__ p_x_1,
    double* __restrict__ p_div_7) {
  assume_threads<128>();
  ASTITCH_SHARED_ARENA(64);
  ASTITCH_SHARED(Reduce0::State, exchange_0_0, 0, 4);
  ASTITCH_SHARED(Reduce1::State, exchange_1_1, 32, 4);
  {  // loop 0: outer 24 / 1 threads, row 1 / 1 threads x 1, col 130 / 128 threads x 1 x 2; 24 tasks; row-reduce: a block a row
    const int thread = threadIdx.x;
    const int tx = threadIdx.x;
    const int ty = 0;
    const int to = 0;
    const int first = blockIdx.x;
    words_of<Vec<double, 2>>::type x_1_kept_0[1];
    double exp_1_kept_0[2];
    {
      const int task = first;
      const int outer = task;
      Reduce0::State reduce_max_7_state_0[1];
      #pragma unroll
      for (int i = 0; i < 1; ++i) reduce_max_7_state_0[i] = Reduce0::identity();
      {
        const int k = 0;
        {
          const int l = 0;
          const int col = l * 256 + tx * 2;
          if (col < 130) {
            const int at_0 = outer * 130 + col;
            const Vec<double, 2> x_1_v_0 = *reinterpret_cast<const Vec<double, 2>*>(p_x_1 + (at_0));
            x_1_kept_0[k + l] = to_words(x_1_v_0);
            #pragma unroll
            for (int lane = 0; lane < 2; ++lane) {
              const double x_1 = load_as<double>(x_1_v_0.v[lane]);
              reduce_max_7_state_0[0] = Reduce0::combine(reduce_max_7_state_0[0], Reduce0::State{x_1});
            }
          }
        }
      }
      reduce_warps<Reduce0>(reduce_max_7_state_0, exchange_0_0);
      __syncthreads();
      combine_warps<Reduce0, 128, false>(reduce_max_7_state_0, exchange_0_0);
      Reduce1::State reduce_sum_7_state_0[1];
      #pragma unroll
      for (int i = 0; i < 1; ++i) reduce_sum_7_state_0[i] = Reduce1::identity();
      const double reduce_max_7 = reduce_max_7_state_0[0].f0;
      {
        const int k = 0;
        {
          const int l = 0;
          const int col = l * 256 + tx * 2;
          if (col < 130) {
            const Vec<double, 2> x_1_v_0__1 = from_words<Vec<double, 2>>(x_1_kept_0[k + l]);
            #pragma unroll
            for (int lane = 0; lane < 2; ++lane) {
              const double x_1__1 = load_as<double>(x_1_v_0__1.v[lane]);
              const double sub_7 = hlo_subtract(x_1__1, reduce_max_7);
              const double exp_1 = hlo_exp(sub_7);
              exp_1_kept_0[k * 2 + l * 2 + lane] = exp_1;
              reduce_sum_7_state_0[0] = Reduce1::combine(reduce_sum_7_state_0[0], Reduce1::State{exp_1});
            }
          }
        }
      }
      reduce_warps<Reduce1>(reduce_sum_7_state_0, exchange_1_1);
      __syncthreads();
      combine_warps<Reduce1, 128, false>(reduce_sum_7_state_0, exchange_1_1);
      const double reduce_sum_7 = reduce_sum_7_state_0[0].f0;
      {
        const int k = 0;
        {
          const int l = 0;
          const int col = l * 256 + tx * 2;
          if (col < 130) {
            const int at_0__1 = outer * 130 + col;
            Vec<double, 2> div_7_w_0;
            #pragma unroll
            for (int lane = 0; lane < 2; ++lane) {
              const double exp_1__1 = exp_1_kept_0[k * 2 + l * 2 + lane];
              const double div_7 = hlo_divide(exp_1__1, reduce_sum_7);
              div_7_w_0.v[lane] = store_as<double>(div_7);
            }
            *reinterpret_cast<Vec<double, 2>*>(p_div_7 + (at_0__1)) = div_7_w_0;
          }
        }
      }
    }
  }
}
