#include "astitch.cuh"
// stitch_0: grid 64 x 64 threads, 32 B shared
//   jit(softmax)/reduce_max
//   jit(softmax)/sub
//   jit(softmax)/exp
//   jit(softmax)/convert_element_type
//   jit(softmax)/reduce_sum
//   jit(softmax)/div
struct Reduce0 {
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
struct Reduce1 {
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
extern "C" __global__ void __launch_bounds__(64, 1) stitch_0(
    const bf16* __restrict__ p_x_1,
    bf16* __restrict__ p_div_7) {
  assume_threads<64>();
  ASTITCH_SHARED_ARENA(32);
  ASTITCH_SHARED(Reduce0::State, exchange_0_0, 0, 2);
  ASTITCH_SHARED(Reduce1::State, exchange_1_1, 16, 2);
  {  // loop 0: outer 64 / 1 threads, row 1 / 1 threads x 1, col 512 / 64 threads x 1 x 8; 64 tasks; row-reduce: a block a row
    const int thread = threadIdx.x;
    const int tx = threadIdx.x;
    const int ty = 0;
    const int to = 0;
    const int first = blockIdx.x;
    words_of<Vec<bf16, 8>>::type x_1_kept_0[1];
    bf16 exp_1_kept_0[8];
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
          const int col = l * 512 + tx * 8;
          const int at_0 = outer * 512 + col;
          const Vec<bf16, 8> x_1_v_0 = *reinterpret_cast<const Vec<bf16, 8>*>(p_x_1 + (at_0));
          x_1_kept_0[k + l] = to_words(x_1_v_0);
          #pragma unroll
          for (int lane = 0; lane < 8; ++lane) {
            const float x_1 = bf16_lane(x_1_v_0, lane);
            reduce_max_7_state_0[0] = Reduce0::combine(reduce_max_7_state_0[0], Reduce0::State{x_1});
          }
        }
      }
      reduce_warps<Reduce0>(reduce_max_7_state_0, exchange_0_0);
      __syncthreads();
      combine_warps<Reduce0, 64, false>(reduce_max_7_state_0, exchange_0_0);
      Reduce1::State reduce_sum_7_state_0[1];
      #pragma unroll
      for (int i = 0; i < 1; ++i) reduce_sum_7_state_0[i] = Reduce1::identity();
      const float reduce_max_7 = round_to<bf16>(reduce_max_7_state_0[0].f0);
      {
        const int k = 0;
        {
          const int l = 0;
          const int col = l * 512 + tx * 8;
          const Vec<bf16, 8> x_1_v_0__1 = from_words<Vec<bf16, 8>>(x_1_kept_0[k + l]);
          #pragma unroll
          for (int lane = 0; lane < 8; ++lane) {
            const float x_1__1 = bf16_lane(x_1_v_0__1, lane);
            const float sub_7 = round_to<bf16>(hlo_subtract(x_1__1, reduce_max_7));
            const float exp_1 = round_to<bf16>(narrow_exp<bf16>(sub_7));
            exp_1_kept_0[k * 8 + l * 8 + lane] = store_exact<bf16>(exp_1);
            const float convert_element_type_2 = hlo_convert<float, bf16>(exp_1);
            reduce_sum_7_state_0[0] = Reduce1::combine(reduce_sum_7_state_0[0], Reduce1::State{convert_element_type_2});
          }
        }
      }
      reduce_warps<Reduce1>(reduce_sum_7_state_0, exchange_1_1);
      __syncthreads();
      combine_warps<Reduce1, 64, false>(reduce_sum_7_state_0, exchange_1_1);
      const float reduce_sum_7 = reduce_sum_7_state_0[0].f0;
      const float convert_element_type_3_convert_0 = hlo_convert<bf16, float>(reduce_sum_7);
      {
        const int k = 0;
        {
          const int l = 0;
          const int col = l * 512 + tx * 8;
          const int at_0__1 = outer * 512 + col;
          Lanes<bf16, 8> div_7_w_0;
          #pragma unroll
          for (int lane = 0; lane < 8; ++lane) {
            const float exp_1__1 = load_as<float>(exp_1_kept_0[k * 8 + l * 8 + lane]);
            const float div_7 = narrow_divide<bf16>(exp_1__1, convert_element_type_3_convert_0);
            div_7_w_0.v[lane] = div_7;
          }
          store_lanes(p_div_7 + (at_0__1), div_7_w_0);
        }
      }
    }
  }
}
