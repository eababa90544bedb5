#include "astitch.cuh"
// stitch_0: grid 32 x 512 threads, 256 B shared
//   eq
//   convert_element_type
//   reduce_max
//   sub
//   exp
//   reduce_sum
//   log
//   jit(cross_entropy_one_hot)/jvp()/mul
//   and 9 more
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
    const float* __restrict__ p_logits_1,
    const int* __restrict__ p_labels_1,
    float* __restrict__ p_add_any_1,
    float* __restrict__ p_neg_3,
    unsigned char* scratch,
    unsigned int* barrier) {
  float* const p_reduce_sum_39_partial0_0 = reinterpret_cast<float*>(scratch + 0);
  float* const p_reduce_sum_39 = reinterpret_cast<float*>(scratch + 128);
  assume_threads<512>();
  ASTITCH_SHARED_ARENA(256);
  ASTITCH_SHARED(Reduce1::State, exchange_1_0, 192, 16);
  ASTITCH_SHARED(Reduce0::State, exchange_0_0, 0, 16);
  ASTITCH_SHARED(Reduce0::State, exchange_0_1, 128, 16);
  ASTITCH_SHARED(Reduce0::State, exchange_0_0__1, 64, 16);
  {  // loop 0: outer 64 / 2 threads, row 1 / 1 threads x 1, col 1000 / 256 threads x 1 x 4; 32 tasks; row-reduce: 2 rows a block, 256 threads a row
    const int thread = threadIdx.x;
    const int tx = threadIdx.x % 256;
    const int ty = 0;
    const int to = threadIdx.x / 256;
    const int first = blockIdx.x;
    words_of<Vec<float, 4>>::type logits_1_kept_0[1];
    Reduce0::State reduce_sum_39_state_0[1];
    #pragma unroll
    for (int i = 0; i < 1; ++i) reduce_sum_39_state_0[i] = Reduce0::identity();
    if (first < 32) {
      const int task = first;
      const int outer = task * 2 + to;
      Reduce1::State reduce_max_7_state_0[1];
      #pragma unroll
      for (int i = 0; i < 1; ++i) reduce_max_7_state_0[i] = Reduce1::identity();
      Reduce0::State reduce_sum_36_state_0[1];
      #pragma unroll
      for (int i = 0; i < 1; ++i) reduce_sum_36_state_0[i] = Reduce0::identity();
      const int labels_1 = load_as<int>(p_labels_1[outer]);
      {
        const int k = 0;
        {
          const int l = 0;
          const int col = l * 1024 + tx * 4;
          if (col < 1000) {
            const int at_0 = outer * 1000 + col;
            const Vec<float, 4> logits_1_v_0 = *reinterpret_cast<const Vec<float, 4>*>(p_logits_1 + (at_0));
            logits_1_kept_0[k + l] = to_words(logits_1_v_0);
            #pragma unroll
            for (int lane = 0; lane < 4; ++lane) {
              const float logits_1 = load_as<float>(logits_1_v_0.v[lane]);
              reduce_max_7_state_0[0] = Reduce1::combine(reduce_max_7_state_0[0], Reduce1::State{logits_1});
              const int iota_2 = hlo_convert<int>(col + lane);
              const bool eq_13 = hlo_compare_eq(labels_1, iota_2);
              const float convert_element_type_1 = hlo_convert<float, bool>(eq_13);
              const float mul_5 = hlo_multiply(convert_element_type_1, -0.015625f);
              const float neg_2 = hlo_negate(mul_5);
              reduce_sum_36_state_0[0] = Reduce0::combine(reduce_sum_36_state_0[0], Reduce0::State{neg_2});
            }
          }
        }
      }
      reduce_warps<Reduce1>(reduce_max_7_state_0, exchange_1_0);
      reduce_warps<Reduce0>(reduce_sum_36_state_0, exchange_0_0);
      __syncthreads();
      combine_warps<Reduce1, 256, false>(reduce_max_7_state_0, exchange_1_0);
      combine_warps<Reduce0, 256, false>(reduce_sum_36_state_0, exchange_0_0);
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
            const Vec<float, 4> logits_1_v_0__1 = from_words<Vec<float, 4>>(logits_1_kept_0[k + l]);
            #pragma unroll
            for (int lane = 0; lane < 4; ++lane) {
              const float logits_1__1 = load_as<float>(logits_1_v_0__1.v[lane]);
              const float sub_11 = hlo_subtract(logits_1__1, reduce_max_7);
              const float exp_1 = hlo_exp(sub_11);
              reduce_sum_7_state_0[0] = Reduce0::combine(reduce_sum_7_state_0[0], Reduce0::State{exp_1});
            }
          }
        }
      }
      reduce_warps<Reduce0>(reduce_sum_7_state_0, exchange_0_1);
      __syncthreads();
      combine_warps<Reduce0, 256, false>(reduce_sum_7_state_0, exchange_0_1);
      Reduce0::State reduce_sum_38_state_0[1];
      #pragma unroll
      for (int i = 0; i < 1; ++i) reduce_sum_38_state_0[i] = Reduce0::identity();
      const float reduce_sum_7 = reduce_sum_7_state_0[0].f0;
      const float log_1_log_0 = hlo_log(reduce_sum_7);
      const float reduce_sum_36 = reduce_sum_36_state_0[0].f0;
      const float div_2_divide_0 = hlo_divide(reduce_sum_36, reduce_sum_7);
      const float reduce_sum_37 = hlo_add(0.0f, div_2_divide_0);
      {
        const int k = 0;
        {
          const int l = 0;
          const int col = l * 1024 + tx * 4;
          if (col < 1000) {
            const Vec<float, 4> logits_1_v_0__2 = from_words<Vec<float, 4>>(logits_1_kept_0[k + l]);
            const int at_0__1 = outer * 1000 + col;
            Vec<float, 4> add_any_1_w_0;
            #pragma unroll
            for (int lane = 0; lane < 4; ++lane) {
              const int iota_2__1 = hlo_convert<int>(col + lane);
              const bool eq_13__1 = hlo_compare_eq(labels_1, iota_2__1);
              const float convert_element_type_1__1 = hlo_convert<float, bool>(eq_13__1);
              const float logits_1__2 = load_as<float>(logits_1_v_0__2.v[lane]);
              const float sub_11__1 = hlo_subtract(logits_1__2, reduce_max_7);
              const float sub_15 = hlo_subtract(sub_11__1, log_1_log_0);
              const float mul_4 = hlo_multiply(convert_element_type_1__1, sub_15);
              reduce_sum_38_state_0[0].f0 = hlo_multiply_add(convert_element_type_1__1, sub_15, reduce_sum_38_state_0[0].f0);
              const float mul_5__1 = hlo_multiply(convert_element_type_1__1, -0.015625f);
              const float exp_1__1 = hlo_exp(sub_11__1);
              const float mul_3 = hlo_multiply(reduce_sum_37, exp_1__1);
              const float add_any_1 = hlo_add(mul_5__1, mul_3);
              add_any_1_w_0.v[lane] = store_as<float>(add_any_1);
            }
            *reinterpret_cast<Vec<float, 4>*>(p_add_any_1 + (at_0__1)) = add_any_1_w_0;
          }
        }
      }
      reduce_warps<Reduce0>(reduce_sum_38_state_0, exchange_0_0__1);
      __syncthreads();
      combine_warps<Reduce0, 256, false>(reduce_sum_38_state_0, exchange_0_0__1);
      const float reduce_sum_38 = reduce_sum_38_state_0[0].f0;
      if (tx < 1) {
        reduce_sum_39_state_0[0] = Reduce0::combine(reduce_sum_39_state_0[0], Reduce0::State{reduce_sum_38});
      }
    }
    reduce_warps<Reduce0>(reduce_sum_39_state_0, exchange_0_1);
    __syncthreads();
    combine_warps<Reduce0, 512, false>(reduce_sum_39_state_0, exchange_0_1);
    if (first < 32) {
      if (to < 1 && tx < 1) {
        p_reduce_sum_39_partial0_0[first] = store_as<float>(reduce_sum_39_state_0[0].f0);
      }
    }
  }
  ASTITCH_GLOBAL_BARRIER(barrier);  // Global: %reduce_sum.39 before level 1
  {  // loop 1: outer 1 / 16 threads, row 1 / 1 threads x 1, col 32 / 32 threads x 1 x 1; 1 tasks; row-reduce: 16 rows a block, 32 threads a row
    const int thread = threadIdx.x;
    const int tx = threadIdx.x % 32;
    const int ty = 0;
    const int to = threadIdx.x / 32;
    const int first = blockIdx.x;
    if (first < 1) {
      const int task = first;
      Reduce0::State reduce_sum_39_state_0__1[1];
      #pragma unroll
      for (int i = 0; i < 1; ++i) reduce_sum_39_state_0__1[i] = Reduce0::identity();
      {
        const int k = 0;
        {
          const int l = 0;
          const int col = l * 32 + tx;
          if (to < 1) {
            reduce_sum_39_state_0__1[0] = Reduce0::combine(reduce_sum_39_state_0__1[0], Reduce0::State{load_as<float>(p_reduce_sum_39_partial0_0[col])});
          }
        }
      }
      reduce_lanes<Reduce0, 32, 1>(reduce_sum_39_state_0__1);
      const float reduce_sum_39 = reduce_sum_39_state_0__1[0].f0;
      if (to < 1 && tx < 1) {
        p_reduce_sum_39[0] = store_as<float>(reduce_sum_39);
      }
      const float reduce_sum_39__1 = reduce_sum_39_state_0__1[0].f0;
      const float div_3 = hlo_divide_shared(reduce_sum_39__1, 64.0f);
      const float neg_3 = hlo_negate(div_3);
      if (to < 1 && tx < 1) {
        p_neg_3[0] = store_as<float>(neg_3);
      }
    }
  }
}
