#include "astitch.cuh"
// stitch_0: grid 24 x 512 threads, 192 B shared
//   jit(cross_entropy_integer_labels)/jvp()/convert_element_type
//   jit(cross_entropy_integer_labels)/jvp()/reduce_max
//   jit(cross_entropy_integer_labels)/jvp()/is_finite
//   jit(cross_entropy_integer_labels)/jvp()/select_n
//   jit(cross_entropy_integer_labels)/jvp()/sub
//   jit(cross_entropy_integer_labels)/jvp()/exp
//   jit(cross_entropy_integer_labels)/jvp()/reduce_sum
//   jit(cross_entropy_integer_labels)/jvp()/abs
//   and 22 more
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
extern "C" __global__ void __launch_bounds__(512, 2) stitch_0(
    const bf16* __restrict__ p_logits_1,
    const int* __restrict__ p_labels_1,
    bf16* __restrict__ p_convert_element_type_3,
    float* __restrict__ p_div_2,
    unsigned char* scratch,
    unsigned int* barrier) {
  float* const p_reduce_sum_15_partial0_0 = reinterpret_cast<float*>(scratch + 0);
  float* const p_reduce_sum_15 = reinterpret_cast<float*>(scratch + 96);
  assume_threads<512>();
  ASTITCH_SHARED_ARENA(192);
  ASTITCH_SHARED(Reduce1::State, exchange_1_0, 128, 16);
  ASTITCH_SHARED(Reduce0::State, exchange_0_1, 64, 16);
  ASTITCH_SHARED(Reduce0::State, exchange_0_0, 0, 16);
  {  // loop 0: outer 4x12 / 2 threads, row 1 / 1 threads x 1, col 700 / 256 threads x 1 x 4; 24 tasks; row-reduce: 2 rows a block, 256 threads a row
    const int thread = threadIdx.x;
    const int tx = threadIdx.x % 256;
    const int ty = 0;
    const int to = threadIdx.x / 256;
    const int first = blockIdx.x;
    words_of<Vec<bf16, 4>>::type logits_1_kept_0[1];
    Reduce0::State reduce_sum_15_state_0[1];
    #pragma unroll
    for (int i = 0; i < 1; ++i) reduce_sum_15_state_0[i] = Reduce0::identity();
    if (first < 24) {
      const int task = first;
      const int outer = task * 2 + to;
      Reduce1::State reduce_max_7_state_0[1];
      #pragma unroll
      for (int i = 0; i < 1; ++i) reduce_max_7_state_0[i] = Reduce1::identity();
      {
        const int k = 0;
        {
          const int l = 0;
          const int col = l * 1024 + tx * 4;
          if (col < 700) {
            const int at_0 = outer * 700 + col;
            const Vec<bf16, 4> logits_1_v_0 = *reinterpret_cast<const Vec<bf16, 4>*>(p_logits_1 + (at_0));
            logits_1_kept_0[k + l] = to_words(logits_1_v_0);
            #pragma unroll
            for (int lane = 0; lane < 4; ++lane) {
              const float logits_1 = bf16_lane(logits_1_v_0, lane);
              const float convert_element_type_2 = hlo_convert<float, bf16>(logits_1);
              reduce_max_7_state_0[0] = Reduce1::combine(reduce_max_7_state_0[0], Reduce1::State{convert_element_type_2});
            }
          }
        }
      }
      reduce_warps<Reduce1>(reduce_max_7_state_0, exchange_1_0);
      __syncthreads();
      combine_warps<Reduce1, 256, false>(reduce_max_7_state_0, exchange_1_0);
      Reduce0::State reduce_sum_14_state_0[1];
      #pragma unroll
      for (int i = 0; i < 1; ++i) reduce_sum_14_state_0[i] = Reduce0::identity();
      const float reduce_max_7 = reduce_max_7_state_0[0].f0;
      const bool is_finite_1 = hlo_is_finite(reduce_max_7);
      const float select_n_7 = (is_finite_1 ? reduce_max_7 : 0.0f);
      {
        const int k = 0;
        {
          const int l = 0;
          const int col = l * 1024 + tx * 4;
          if (col < 700) {
            const Vec<bf16, 4> logits_1_v_0__1 = from_words<Vec<bf16, 4>>(logits_1_kept_0[k + l]);
            #pragma unroll
            for (int lane = 0; lane < 4; ++lane) {
              const float logits_1__1 = bf16_lane(logits_1_v_0__1, lane);
              const float convert_element_type_2__1 = hlo_convert<float, bf16>(logits_1__1);
              const float sub_8 = hlo_subtract(convert_element_type_2__1, select_n_7);
              const float exp_1 = hlo_exp(sub_8);
              reduce_sum_14_state_0[0] = Reduce0::combine(reduce_sum_14_state_0[0], Reduce0::State{exp_1});
            }
          }
        }
      }
      reduce_warps<Reduce0>(reduce_sum_14_state_0, exchange_0_1);
      __syncthreads();
      combine_warps<Reduce0, 256, false>(reduce_sum_14_state_0, exchange_0_1);
      const float reduce_sum_14 = reduce_sum_14_state_0[0].f0;
      const float abs_1 = hlo_abs(reduce_sum_14);
      const float log_1 = hlo_log(abs_1);
      const float add_7 = hlo_add(log_1, select_n_7);
      const int labels_1 = load_as<int>(p_labels_1[outer]);
      const bool lt_3_compare_0 = hlo_compare_lt(labels_1, 0);
      const int add_3_add_0 = hlo_add(labels_1, 700);
      const int select_n_2_select_0 = (lt_3_compare_0 ? add_3_add_0 : labels_1);
      const bool ge_3_compare_0 = hlo_compare_ge(select_n_2_select_0, 0);
      const bool le_3_compare_0 = hlo_compare_le(select_n_2_select_0, 699);
      const bool and_1_and_0 = hlo_and(ge_3_compare_0, le_3_compare_0);
      const int start_0 = (int)hlo_clamp((int)0, (int)select_n_2_select_0, (int)699);
      const int at_0__1 = start_0 + outer * 700;
      const float logits_1__2 = load_as<float>(p_logits_1[at_0__1]);
      const float convert_element_type_2__2 = hlo_convert<float, bf16>(logits_1__2);
      const float select_n_3 = (and_1_and_0 ? convert_element_type_2__2 : same_bits<float>(0x7fc00000u));
      const float sub_9 = hlo_subtract(add_7, select_n_3);
      if (tx < 1) {
        reduce_sum_15_state_0[0] = Reduce0::combine(reduce_sum_15_state_0[0], Reduce0::State{sub_9});
      }
      const bool ge_5 = hlo_compare_ge(reduce_sum_14, 0.0f);
      const float div_3 = hlo_divide(0.020833334f, abs_1);
      const float select_n_9 = (ge_5 ? div_3 : 0.0f);
      const float select_n_8 = (ge_5 ? 0.0f : div_3);
      const float neg_1 = hlo_negate(select_n_8);
      const float add_any_2 = hlo_add(select_n_9, neg_1);
      {
        const int k = 0;
        {
          const int l = 0;
          const int col = l * 1024 + tx * 4;
          if (col < 700) {
            const Vec<bf16, 4> logits_1_v_0__2 = from_words<Vec<bf16, 4>>(logits_1_kept_0[k + l]);
            const int at_0__2 = outer * 700 + col;
            Lanes<bf16, 4> convert_element_type_3_w_0;
            #pragma unroll
            for (int lane = 0; lane < 4; ++lane) {
              const float logits_1__3 = bf16_lane(logits_1_v_0__2, lane);
              const float convert_element_type_2__3 = hlo_convert<float, bf16>(logits_1__3);
              const float sub_8__1 = hlo_subtract(convert_element_type_2__3, select_n_7);
              const float exp_1__1 = hlo_exp(sub_8__1);
              const float mul_1 = hlo_multiply(add_any_2, exp_1__1);
              const int scatter_add_5_iota_0 = hlo_convert<int>(col + lane);
              const bool scatter_add_5_compare_0 = hlo_compare_eq(select_n_2_select_0, scatter_add_5_iota_0);
              const float scatter_add_5 = (scatter_add_5_compare_0 ? -0.020833334f : 0.0f);
              const float add_any_3 = hlo_add(mul_1, scatter_add_5);
              const float convert_element_type_3 = hlo_convert<float, float>(add_any_3);
              convert_element_type_3_w_0.v[lane] = convert_element_type_3;
            }
            store_lanes(p_convert_element_type_3 + (at_0__2), convert_element_type_3_w_0);
          }
        }
      }
    }
    reduce_warps<Reduce0>(reduce_sum_15_state_0, exchange_0_0);
    __syncthreads();
    combine_warps<Reduce0, 512, false>(reduce_sum_15_state_0, exchange_0_0);
    if (first < 24) {
      if (to < 1 && tx < 1) {
        p_reduce_sum_15_partial0_0[first] = store_as<float>(reduce_sum_15_state_0[0].f0);
      }
    }
  }
  ASTITCH_GLOBAL_BARRIER(barrier);  // Global: %reduce_sum.15 before level 1
  {  // loop 1: outer 1 / 16 threads, row 1 / 1 threads x 1, col 24 / 32 threads x 1 x 1; 1 tasks; row-reduce: 16 rows a block, 32 threads a row
    const int thread = threadIdx.x;
    const int tx = threadIdx.x % 32;
    const int ty = 0;
    const int to = threadIdx.x / 32;
    const int first = blockIdx.x;
    if (first < 1) {
      const int task = first;
      Reduce0::State reduce_sum_15_state_0__1[1];
      #pragma unroll
      for (int i = 0; i < 1; ++i) reduce_sum_15_state_0__1[i] = Reduce0::identity();
      {
        const int k = 0;
        {
          const int l = 0;
          const int col = l * 32 + tx;
          if (col < 24) {
            if (to < 1) {
              reduce_sum_15_state_0__1[0] = Reduce0::combine(reduce_sum_15_state_0__1[0], Reduce0::State{load_as<float>(p_reduce_sum_15_partial0_0[col])});
            }
          }
        }
      }
      reduce_lanes<Reduce0, 32, 1>(reduce_sum_15_state_0__1);
      const float reduce_sum_15 = reduce_sum_15_state_0__1[0].f0;
      if (to < 1 && tx < 1) {
        p_reduce_sum_15[0] = store_as<float>(reduce_sum_15);
      }
      const float reduce_sum_15__1 = reduce_sum_15_state_0__1[0].f0;
      const float div_2 = hlo_divide_shared(reduce_sum_15__1, 48.0f);
      if (to < 1 && tx < 1) {
        p_div_2[0] = store_as<float>(div_2);
      }
    }
  }
}
