#include "astitch.cuh"
// stitch_0: grid 16 x 512 threads, 256 B shared
//   jit(cross_entropy_bf16)/jvp()/convert_element_type
//   jit(cross_entropy_bf16)/jvp()/reduce_max
//   jit(cross_entropy_bf16)/jvp()/is_finite
//   jit(cross_entropy_bf16)/jvp()/select_n
//   jit(cross_entropy_bf16)/jvp()/sub
//   jit(cross_entropy_bf16)/jvp()/exp
//   jit(cross_entropy_bf16)/jvp()/reduce_sum
//   jit(cross_entropy_bf16)/jvp()/abs
//   and 13 more
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
  float* const p_reduce_sum_23_partial0_0 = reinterpret_cast<float*>(scratch + 0);
  float* const p_reduce_sum_23 = reinterpret_cast<float*>(scratch + 64);
  assume_threads<512>();
  ASTITCH_SHARED_ARENA(256);
  ASTITCH_SHARED(Reduce1::State, exchange_1_0, 192, 16);
  ASTITCH_SHARED(Reduce0::State, exchange_0_0, 0, 16);
  ASTITCH_SHARED(Reduce0::State, exchange_0_1, 128, 16);
  ASTITCH_SHARED(Reduce0::State, exchange_0_0__1, 64, 16);
  {  // loop 0: outer 16 / 1 threads, row 1 / 1 threads x 1, col 5000 / 512 threads x 2 x 8; 16 tasks; row-reduce: a block a row
    const int thread = threadIdx.x;
    const int tx = threadIdx.x;
    const int ty = 0;
    const int to = 0;
    const int first = blockIdx.x;
    words_of<Vec<bf16, 8>>::type logits_1_kept_0[2];
    Reduce0::State reduce_sum_23_state_0[1];
    #pragma unroll
    for (int i = 0; i < 1; ++i) reduce_sum_23_state_0[i] = Reduce0::identity();
    if (first < 16) {
      const int task = first;
      const int outer = task;
      Reduce1::State reduce_max_7_state_0[1];
      #pragma unroll
      for (int i = 0; i < 1; ++i) reduce_max_7_state_0[i] = Reduce1::identity();
      Reduce0::State reduce_sum_21_state_0[1];
      #pragma unroll
      for (int i = 0; i < 1; ++i) reduce_sum_21_state_0[i] = Reduce0::identity();
      const int labels_1 = load_as<int>(p_labels_1[outer]);
      {
        const int k = 0;
        #pragma unroll
        for (int l = 0; l < 2; ++l) {
          const int col = l * 4096 + tx * 8;
          if (col < 5000) {
            const int at_0 = outer * 5000 + col;
            const Vec<bf16, 8> logits_1_v_0 = *reinterpret_cast<const Vec<bf16, 8>*>(p_logits_1 + (at_0));
            logits_1_kept_0[k * 2 + l] = to_words(logits_1_v_0);
            #pragma unroll
            for (int lane = 0; lane < 8; ++lane) {
              const float logits_1 = bf16_lane(logits_1_v_0, lane);
              const float convert_element_type_2 = hlo_convert<float, bf16>(logits_1);
              reduce_max_7_state_0[0] = Reduce1::combine(reduce_max_7_state_0[0], Reduce1::State{convert_element_type_2});
              const int iota_1 = hlo_convert<int>(col + lane);
              const bool eq_13 = hlo_compare_eq(iota_1, labels_1);
              const float select_n_1 = (eq_13 ? convert_element_type_2 : 0.0f);
              reduce_sum_21_state_0[0] = Reduce0::combine(reduce_sum_21_state_0[0], Reduce0::State{select_n_1});
            }
          }
        }
      }
      reduce_warps<Reduce1>(reduce_max_7_state_0, exchange_1_0);
      reduce_warps<Reduce0>(reduce_sum_21_state_0, exchange_0_0);
      __syncthreads();
      combine_warps<Reduce1, 512, true>(reduce_max_7_state_0, exchange_1_0);
      combine_warps<Reduce0, 512, true>(reduce_sum_21_state_0, exchange_0_0);
      Reduce0::State reduce_sum_22_state_0[1];
      #pragma unroll
      for (int i = 0; i < 1; ++i) reduce_sum_22_state_0[i] = Reduce0::identity();
      const float reduce_max_7 = reduce_max_7_state_0[0].f0;
      const bool is_finite_1 = hlo_is_finite(reduce_max_7);
      const float select_n_7 = (is_finite_1 ? reduce_max_7 : 0.0f);
      {
        const int k = 0;
        #pragma unroll
        for (int l = 0; l < 2; ++l) {
          const int col = l * 4096 + tx * 8;
          if (col < 5000) {
            const Vec<bf16, 8> logits_1_v_0__1 = from_words<Vec<bf16, 8>>(logits_1_kept_0[k * 2 + l]);
            #pragma unroll
            for (int lane = 0; lane < 8; ++lane) {
              const float logits_1__1 = bf16_lane(logits_1_v_0__1, lane);
              const float convert_element_type_2__1 = hlo_convert<float, bf16>(logits_1__1);
              const float sub_8 = hlo_subtract(convert_element_type_2__1, select_n_7);
              const float exp_1 = hlo_exp(sub_8);
              reduce_sum_22_state_0[0] = Reduce0::combine(reduce_sum_22_state_0[0], Reduce0::State{exp_1});
            }
          }
        }
      }
      reduce_warps<Reduce0>(reduce_sum_22_state_0, exchange_0_1);
      __syncthreads();
      combine_warps<Reduce0, 512, false>(reduce_sum_22_state_0, exchange_0_1);
      const float reduce_sum_22 = reduce_sum_22_state_0[0].f0;
      const float abs_1 = hlo_abs(reduce_sum_22);
      const float log_1 = hlo_log(abs_1);
      const float add_1 = hlo_add(log_1, select_n_7);
      const float reduce_sum_21 = reduce_sum_21_state_0[0].f0;
      const float sub_9 = hlo_subtract(add_1, reduce_sum_21);
      if (tx < 1) {
        reduce_sum_23_state_0[0] = Reduce0::combine(reduce_sum_23_state_0[0], Reduce0::State{sub_9});
      }
      const bool ge_1 = hlo_compare_ge(reduce_sum_22, 0.0f);
      const float div_3 = hlo_divide(0.0625f, abs_1);
      const float select_n_9 = (ge_1 ? div_3 : 0.0f);
      const float select_n_8 = (ge_1 ? 0.0f : div_3);
      const float neg_1 = hlo_negate(select_n_8);
      const float add_any_2 = hlo_add(select_n_9, neg_1);
      {
        const int k = 0;
        #pragma unroll
        for (int l = 0; l < 2; ++l) {
          const int col = l * 4096 + tx * 8;
          if (col < 5000) {
            const Vec<bf16, 8> logits_1_v_0__2 = from_words<Vec<bf16, 8>>(logits_1_kept_0[k * 2 + l]);
            const int at_0__1 = outer * 5000 + col;
            Lanes<bf16, 8> convert_element_type_3_w_0;
            #pragma unroll
            for (int lane = 0; lane < 8; ++lane) {
              const float logits_1__2 = bf16_lane(logits_1_v_0__2, lane);
              const float convert_element_type_2__2 = hlo_convert<float, bf16>(logits_1__2);
              const float sub_8__1 = hlo_subtract(convert_element_type_2__2, select_n_7);
              const float exp_1__1 = hlo_exp(sub_8__1);
              const float mul_1 = hlo_multiply(add_any_2, exp_1__1);
              const int iota_1__1 = hlo_convert<int>(col + lane);
              const bool eq_13__1 = hlo_compare_eq(iota_1__1, labels_1);
              const float select_n_6 = (eq_13__1 ? -0.0625f : 0.0f);
              const float add_any_3 = hlo_add(mul_1, select_n_6);
              const float convert_element_type_3 = hlo_convert<float, float>(add_any_3);
              convert_element_type_3_w_0.v[lane] = convert_element_type_3;
            }
            store_lanes(p_convert_element_type_3 + (at_0__1), convert_element_type_3_w_0);
          }
        }
      }
    }
    reduce_warps<Reduce0>(reduce_sum_23_state_0, exchange_0_0__1);
    __syncthreads();
    if (thread < 32) { combine_warps<Reduce0, 512, false>(reduce_sum_23_state_0, exchange_0_0__1); }
    if (first < 16) {
      if (tx < 1) {
        p_reduce_sum_23_partial0_0[first] = store_as<float>(reduce_sum_23_state_0[0].f0);
      }
    }
  }
  ASTITCH_GLOBAL_BARRIER(barrier);  // Global: %reduce_sum.23 before level 1
  {  // loop 1: outer 1 / 32 threads, row 1 / 1 threads x 1, col 16 / 16 threads x 1 x 1; 1 tasks; row-reduce: 32 rows a block, 16 threads a row
    const int thread = threadIdx.x;
    const int tx = threadIdx.x % 16;
    const int ty = 0;
    const int to = threadIdx.x / 16;
    const int first = blockIdx.x;
    if (first < 1) {
      const int task = first;
      Reduce0::State reduce_sum_23_state_0__1[1];
      #pragma unroll
      for (int i = 0; i < 1; ++i) reduce_sum_23_state_0__1[i] = Reduce0::identity();
      {
        const int k = 0;
        {
          const int l = 0;
          const int col = l * 16 + tx;
          if (to < 1) {
            reduce_sum_23_state_0__1[0] = Reduce0::combine(reduce_sum_23_state_0__1[0], Reduce0::State{load_as<float>(p_reduce_sum_23_partial0_0[col])});
          }
        }
      }
      reduce_lanes<Reduce0, 16, 1>(reduce_sum_23_state_0__1);
      const float reduce_sum_23 = reduce_sum_23_state_0__1[0].f0;
      if (to < 1 && tx < 1) {
        p_reduce_sum_23[0] = store_as<float>(reduce_sum_23);
      }
      const float reduce_sum_23__1 = reduce_sum_23_state_0__1[0].f0;
      const float div_2 = hlo_divide_shared(reduce_sum_23__1, 16.0f);
      if (to < 1 && tx < 1) {
        p_div_2[0] = store_as<float>(div_2);
      }
    }
  }
}
