#include "astitch.cuh"
// stitch_0: grid 48 x 128 threads, 768 B shared
//   jit(column_standardise_softmax)/reduce_sum
//   jit(column_standardise_softmax)/div
//   jit(column_standardise_softmax)/sub
//   jit(column_standardise_softmax)/add
//   jit(column_standardise_softmax)/rsqrt
//   jit(column_standardise_softmax)/mul
//   jit(column_standardise_softmax)/reduce_max
//   jit(column_standardise_softmax)/exp
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
  static constexpr bool commutative = false;
  static constexpr Joint joint = JOINT_MOMENTS;
  struct State { float f0; float f1; float f2; float f3; };
  static __device__ __forceinline__ State identity() { return State{0.0f, 0.0f, 0.0f, 0.0f}; }
  static __device__ __forceinline__ State combine(const State a, const State b) {
    return join_moments(a, b);
  }
  static __device__ __forceinline__ State take(const State s, int lane) {
    return State{value_of_lane(s.f0, lane), value_of_lane(s.f1, lane), value_of_lane(s.f2, lane), value_of_lane(s.f3, lane)};
  }
  static __device__ __forceinline__ State shuffle(const State s, int mask) {
    return State{shuffle_value(s.f0, mask), shuffle_value(s.f1, mask), shuffle_value(s.f2, mask), shuffle_value(s.f3, mask)};
  }
};
struct Reduce2 {
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
extern "C" __global__ void __launch_bounds__(128, 8) stitch_0(
    const float* __restrict__ p_x_1,
    float* __restrict__ p_div_11,
    unsigned char* scratch,
    unsigned int* barrier) {
  float* const p_div_6 = reinterpret_cast<float*>(scratch + 0);
  float* const p_rsqrt_1 = reinterpret_cast<float*>(scratch + 1024);
  float* const p_reduce_max_7_partial0_0 = reinterpret_cast<float*>(scratch + 2048);
  float* const p_reduce_max_7 = reinterpret_cast<float*>(scratch + 14336);
  assume_threads<128>();
  ASTITCH_SHARED_ARENA(768);
  ASTITCH_SHARED(Reduce1::State, exchange_1_0, 0, 48);
  ASTITCH_SHARED(Reduce0::State, exchange_0_0, 0, 132);
  ASTITCH_SHARED(Reduce2::State, exchange_2_0, 0, 4);
  {  // loop 0: outer 1 / 1 threads, row 96 / 64 threads x 2, col 256 / 2 threads x 1 x 4; 32 tasks; column-reduce: 64 rows x 2 threads a block
    const int thread = threadIdx.x;
    const int tx = threadIdx.x % 2;
    const int ty = threadIdx.x / 2;
    const int to = 0;
    const int first = blockIdx.x;
    words_of<Vec<float, 4>>::type x_1_kept_0[2];
    Reduce0::State reduce_max_7_state_0[2];
    #pragma unroll
    for (int i = 0; i < 2; ++i) reduce_max_7_state_0[i] = Reduce0::identity();
    if (first < 32) {
      const int task = first;
      const int col_tile = task;
      Reduce1::State reduce_sum_21_moments_state_0[4];
      #pragma unroll
      for (int i = 0; i < 4; ++i) reduce_sum_21_moments_state_0[i] = Reduce1::identity();
      {
        const int turn = 0;
        const int k = turn;
        const int row = k * 64 + ty;
        {
          const int l = 0;
          const int col = l * 8 + tx * 4 + col_tile * 8;
          const int at_0 = row * 256 + col;
          const Vec<float, 4> x_1_v_0 = *reinterpret_cast<const Vec<float, 4>*>(p_x_1 + (at_0));
          x_1_kept_0[k + l] = to_words(x_1_v_0);
          #pragma unroll
          for (int lane = 0; lane < 4; ++lane) {
            const float x_1 = load_as<float>(x_1_v_0.v[lane]);
            add_to_moments(reduce_sum_21_moments_state_0[l * 4 + lane], x_1);
          }
        }
      }
      {
        const int turn = 0;
        const int k = 1;
        const int row_raw = k * 64 + ty;
        const int row = clamped(row_raw, 95);
        {
          const int l = 0;
          const int col = l * 8 + tx * 4 + col_tile * 8;
          const int at_0 = row * 256 + col;
          const Vec<float, 4> x_1_v_0 = *reinterpret_cast<const Vec<float, 4>*>(p_x_1 + (at_0));
          x_1_kept_0[k + l] = to_words(x_1_v_0);
          #pragma unroll
          for (int lane = 0; lane < 4; ++lane) {
            const float x_1 = load_as<float>(x_1_v_0.v[lane]);
            if (row_raw < 96) {
              add_to_moments(reduce_sum_21_moments_state_0[l * 4 + lane], x_1);
            }
          }
        }
      }
      reduce_strided<Reduce1, 64, 2, 128, 4, false, false>(reduce_sum_21_moments_state_0, exchange_1_0);
      #pragma unroll
      for (int k = 0; k < 2; ++k) {
        const int row = k * 64 + ty;
        if (row < 96) {
          {
            const int l = 0;
            const int col = l * 8 + tx * 4 + col_tile * 8;
            Vec<float, 4> div_6_w_0;
            Vec<float, 4> rsqrt_1_w_0;
            const Vec<float, 4> x_1_v_0__1 = from_words<Vec<float, 4>>(x_1_kept_0[k + l]);
            #pragma unroll
            for (int lane = 0; lane < 4; ++lane) {
              const float reduce_sum_21_get_tuple_element_0 = reduce_sum_21_moments_state_0[l * 4 + lane].f1;
              const bool reduce_sum_21_is_finite_0 = hlo_is_finite(reduce_sum_21_get_tuple_element_0);
              const float reduce_sum_21_get_tuple_element_2 = reduce_sum_21_moments_state_0[l * 4 + lane].f2;
              const float reduce_sum_21_add_0 = hlo_add(reduce_sum_21_get_tuple_element_0, reduce_sum_21_get_tuple_element_2);
              const float reduce_sum_21_select_0 = (reduce_sum_21_is_finite_0 ? reduce_sum_21_add_0 : reduce_sum_21_get_tuple_element_0);
              const float div_6 = hlo_divide_shared(reduce_sum_21_select_0, 96.0f);
              div_6_w_0.v[lane] = store_as<float>(div_6);
              const float reduce_sum_22_get_tuple_element_0 = reduce_sum_21_moments_state_0[l * 4 + lane].f3;
              const float div_7 = hlo_divide_shared(reduce_sum_22_get_tuple_element_0, 96.0f);
              const float add_3 = hlo_add(div_7, 1e-05f);
              const float rsqrt_1 = hlo_rsqrt(add_3);
              rsqrt_1_w_0.v[lane] = store_as<float>(rsqrt_1);
              const float x_1__1 = load_as<float>(x_1_v_0__1.v[lane]);
              const float sub_11 = hlo_subtract(x_1__1, div_6);
              const float mul_7 = hlo_multiply(sub_11, rsqrt_1);
              reduce_max_7_state_0[k] = Reduce0::combine(reduce_max_7_state_0[k], Reduce0::State{mul_7});
            }
            if (row < 1) {
              *reinterpret_cast<Vec<float, 4>*>(p_div_6 + (col)) = div_6_w_0;
            }
            if (row < 1) {
              *reinterpret_cast<Vec<float, 4>*>(p_rsqrt_1 + (col)) = rsqrt_1_w_0;
            }
          }
        }
      }
    }
    reduce_lanes<Reduce0, 2, 1>(reduce_max_7_state_0);
    if (first < 32) {
      #pragma unroll
      for (int k = 0; k < 2; ++k) {
        const int row = k * 64 + ty;
        if (row < 96) {
          if (tx < 1) {
            p_reduce_max_7_partial0_0[first * 96 + row] = store_as<float>(reduce_max_7_state_0[k].f0);
          }
        }
      }
    }
  }
  ASTITCH_GLOBAL_BARRIER(barrier);  // Global: %div.6, %rsqrt.1, %reduce_max.7 before level 1
  {  // loop 1: outer 1 / 1 threads, row 32 / 4 threads x 8, col 96 / 32 threads x 1 x 1; 3 tasks; column-reduce: 4 rows x 32 threads a block
    const int thread = threadIdx.x;
    const int tx = threadIdx.x % 32;
    const int ty = threadIdx.x / 32;
    const int to = 0;
    const int first = blockIdx.x;
    if (first < 3) {
      const int task = first;
      const int col_tile = task;
      Reduce0::State reduce_max_7_state_0__1[1];
      #pragma unroll
      for (int i = 0; i < 1; ++i) reduce_max_7_state_0__1[i] = Reduce0::identity();
      #pragma unroll
      for (int turn = 0; turn < 8; ++turn) {
        const int k = turn;
        const int row = k * 4 + ty;
        {
          const int l = 0;
          const int col = l * 32 + tx + col_tile * 32;
          const int at_0__1 = row * 96 + col;
          reduce_max_7_state_0__1[l] = Reduce0::combine(reduce_max_7_state_0__1[l], Reduce0::State{load_as<float>(p_reduce_max_7_partial0_0[at_0__1])});
        }
      }
      reduce_strided<Reduce0, 4, 32, 128, 4, false, true>(reduce_max_7_state_0__1, exchange_0_0);
      {
        const int l = 0;
        const int col = l * 32 + tx + col_tile * 32;
        const float reduce_max_7 = reduce_max_7_state_0__1[l].f0;
        if (ty < 1) {
          p_reduce_max_7[col] = store_as<float>(reduce_max_7);
        }
      }
    }
  }
  ASTITCH_GLOBAL_BARRIER(barrier);  // Global: %rsqrt.1, %reduce_max.7, %reduce_max.7 before level 2
  {  // loop 2: outer 96 / 2 threads, row 1 / 1 threads x 1, col 256 / 64 threads x 1 x 4; 48 tasks; row-reduce: 2 rows a block, 64 threads a row
    const int thread = threadIdx.x;
    const int tx = threadIdx.x % 64;
    const int ty = 0;
    const int to = threadIdx.x / 64;
    const int first = blockIdx.x;
    float exp_1_kept_0[4];
    {
      const int task = first;
      const int outer = task * 2 + to;
      Reduce2::State reduce_sum_23_state_0[1];
      #pragma unroll
      for (int i = 0; i < 1; ++i) reduce_sum_23_state_0[i] = Reduce2::identity();
      const float reduce_max_7__1 = load_as<float>(p_reduce_max_7[outer]);
      {
        const int k = 0;
        {
          const int l = 0;
          const int col = l * 256 + tx * 4;
          const int at_0__2 = outer * 256 + col;
          const Vec<float, 4> x_1_v_0__2 = *reinterpret_cast<const Vec<float, 4>*>(p_x_1 + (at_0__2));
          const Vec<float, 4> div_6_v_0 = *reinterpret_cast<const Vec<float, 4>*>(p_div_6 + (col));
          const Vec<float, 4> rsqrt_1_v_0 = *reinterpret_cast<const Vec<float, 4>*>(p_rsqrt_1 + (col));
          #pragma unroll
          for (int lane = 0; lane < 4; ++lane) {
            const float x_1__2 = load_as<float>(x_1_v_0__2.v[lane]);
            const float div_6__1 = load_as<float>(div_6_v_0.v[lane]);
            const float sub_11__1 = hlo_subtract(x_1__2, div_6__1);
            const float rsqrt_1__1 = load_as<float>(rsqrt_1_v_0.v[lane]);
            const float mul_7__1 = hlo_multiply(sub_11__1, rsqrt_1__1);
            const float sub_15 = hlo_subtract(mul_7__1, reduce_max_7__1);
            const float exp_1 = hlo_exp(sub_15);
            exp_1_kept_0[k * 4 + l * 4 + lane] = exp_1;
            reduce_sum_23_state_0[0] = Reduce2::combine(reduce_sum_23_state_0[0], Reduce2::State{exp_1});
          }
        }
      }
      reduce_warps<Reduce2>(reduce_sum_23_state_0, exchange_2_0);
      __syncthreads();
      combine_warps<Reduce2, 64, false>(reduce_sum_23_state_0, exchange_2_0);
      const float reduce_sum_23 = reduce_sum_23_state_0[0].f0;
      {
        const int k = 0;
        {
          const int l = 0;
          const int col = l * 256 + tx * 4;
          const int at_0__3 = outer * 256 + col;
          Vec<float, 4> div_11_w_0;
          #pragma unroll
          for (int lane = 0; lane < 4; ++lane) {
            const float exp_1__1 = exp_1_kept_0[k * 4 + l * 4 + lane];
            const float div_11 = hlo_divide_shared(exp_1__1, reduce_sum_23);
            div_11_w_0.v[lane] = store_as<float>(div_11);
          }
          *reinterpret_cast<Vec<float, 4>*>(p_div_11 + (at_0__3)) = div_11_w_0;
        }
      }
    }
  }
}
