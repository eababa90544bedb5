#include "astitch.cuh"
// stitch_0: grid 7 x 512 threads, 24576 B shared
//   jit(train)/reduce_sum
//   jit(train)/div
//   jit(train)/sub
//   jit(train)/add
//   jit(train)/rsqrt
//   jit(train)/mul
//   max
struct Reduce0 {
  static constexpr bool commutative = false;
  static constexpr Joint joint = JOINT_MOMENTS;
  struct State { float f0; float f1; float f2; };
  static __device__ __forceinline__ State identity() { return State{0.0f, 0.0f, 0.0f}; }
  static __device__ __forceinline__ State combine(const State a, const State b) {
    return join_moments(a, b);
  }
  static __device__ __forceinline__ State take(const State s, int lane) {
    return State{value_of_lane(s.f0, lane), value_of_lane(s.f1, lane), value_of_lane(s.f2, lane)};
  }
  static __device__ __forceinline__ State shuffle(const State s, int mask) {
    return State{shuffle_value(s.f0, mask), shuffle_value(s.f1, mask), shuffle_value(s.f2, mask)};
  }
};
extern "C" __global__ void __launch_bounds__(512, 2) stitch_0(
    const float* __restrict__ p_x_1,
    const float* __restrict__ p_gamma_1,
    const float* __restrict__ p_beta_1,
    const float* __restrict__ p_running_mean_1,
    const float* __restrict__ p_running_variance_1,
    float* __restrict__ p_div_2,
    float* __restrict__ p_div_3,
    float* __restrict__ p_max_3,
    float* __restrict__ p_add_14,
    float* __restrict__ p_add_15,
    float* p_reduce_sum_14_moments_partial0_0,
    float* p_reduce_sum_14_moments_partial1_0,
    float* p_reduce_sum_14_moments_partial2_0,
    float* p_reduce_sum_14_moments_1,
    float* p_reduce_sum_14_moments_2,
    unsigned int* barrier) {
  ASTITCH_SHARED_ARENA(24576);
  ASTITCH_SHARED(Reduce0::State, exchange_0_0, 0, 2048);
  ASTITCH_SHARED(Reduce0::State, exchange_0_0__1, 0, 512);
  {  // loop 0: outer 1 / 1 threads, row 8x10x10 / 32 threads x 4, col 48 / 16 threads x 1 x 4; 7 tasks; column-reduce: 32 rows x 16 threads a block, 1 tiles < 264 blocks a ...
    const int thread = threadIdx.x;
    const int tx = thread % 16;
    const int ty = thread / 16 % 32;
    const int to = thread / 512;
    const int first = blockIdx.x;
    Reduce0::State reduce_sum_14_moments_state_0[4];
    #pragma unroll
    for (int i = 0; i < 4; ++i) reduce_sum_14_moments_state_0[i] = Reduce0::identity();
    if (first < 7) {
      const int task = first;
      const int row_tile = task;
      #pragma unroll
      for (int k = 0; k < 4; ++k) {
        const int row = k * 32 + ty + row_tile * 128;
        if (row < 800) {
          {
            const int l = 0;
            const int col = l * 64 + tx * 4;
            if (col < 48) {
              const int at_0 = row * 48 + col;
              const Vec<float, 4> x_1_v_0 = *reinterpret_cast<const Vec<float, 4>*>(p_x_1 + (at_0));
              #pragma unroll
              for (int lane = 0; lane < 4; ++lane) {
                const float x_1 = load_as<float>(x_1_v_0.v[lane]);
                add_to_moments(reduce_sum_14_moments_state_0[l * 4 + lane], x_1);
              }
            }
          }
        }
      }
    }
    reduce_strided<Reduce0, 32, 16, 512, 4, true>(reduce_sum_14_moments_state_0, exchange_0_0);
    if (first < 7) {
      {
        const int l = 0;
        const int col = l * 64 + tx * 4;
        if (col < 48) {
          #pragma unroll
          for (int lane = 0; lane < 4; ++lane) {
            if (ty < 1) {
              p_reduce_sum_14_moments_partial0_0[first * 48 + col + lane] = store_as<float>(reduce_sum_14_moments_state_0[l * 4 + lane].f0);
              p_reduce_sum_14_moments_partial1_0[first * 48 + col + lane] = store_as<float>(reduce_sum_14_moments_state_0[l * 4 + lane].f1);
              p_reduce_sum_14_moments_partial2_0[first * 48 + col + lane] = store_as<float>(reduce_sum_14_moments_state_0[l * 4 + lane].f2);
            }
          }
        }
      }
    }
  }
  ASTITCH_GLOBAL_BARRIER(barrier);  // Global: %reduce_sum.14.moments before level 1
  {  // loop 1: outer 1 / 2 threads, row 7 / 8 threads x 1, col 48 / 32 threads x 1 x 1; 2 tasks; column-reduce: 8 rows x 32 threads a block
    const int thread = threadIdx.x;
    const int tx = thread % 32;
    const int ty = thread / 32 % 8;
    const int to = thread / 256;
    const int first = blockIdx.x;
    if (first < 2) {
      const int task = first;
      const int col_tile = task;
      Reduce0::State reduce_sum_14_moments_state_0__1[1];
      #pragma unroll
      for (int i = 0; i < 1; ++i) reduce_sum_14_moments_state_0__1[i] = Reduce0::identity();
      {
        const int k = 0;
        const int row = k * 8 + ty;
        if (row < 7) {
          {
            const int l = 0;
            const int col = l * 32 + tx + col_tile * 32;
            if (col < 48) {
              const int at_0__1 = row * 48 + col;
              if (to < 1) {
                reduce_sum_14_moments_state_0__1[l] = Reduce0::combine(reduce_sum_14_moments_state_0__1[l], Reduce0::State{load_as<float>(p_reduce_sum_14_moments_partial0_0[at_0__1]), load_as<float>(p_reduce_sum_14_moments_partial1_0[at_0__1]), load_as<float>(p_reduce_sum_14_moments_partial2_0[at_0__1])});
              }
            }
          }
        }
      }
      reduce_strided<Reduce0, 8, 32, 512, 4, true>(reduce_sum_14_moments_state_0__1, exchange_0_0__1);
      {
        const int l = 0;
        const int col = l * 32 + tx + col_tile * 32;
        if (col < 48) {
          const float reduce_sum_14_moments_0 = reduce_sum_14_moments_state_0__1[l].f1;
          if (to < 1 && ty < 1) {
            p_reduce_sum_14_moments_1[col] = store_as<float>(reduce_sum_14_moments_0);
          }
          const float reduce_sum_14_moments_0__1 = reduce_sum_14_moments_state_0__1[l].f2;
          if (to < 1 && ty < 1) {
            p_reduce_sum_14_moments_2[col] = store_as<float>(reduce_sum_14_moments_0__1);
          }
        }
      }
    }
  }
  ASTITCH_GLOBAL_BARRIER(barrier);  // Global: %reduce_sum.14.moments, %reduce_sum.14.moments before level 2
  {  // loop 2: outer 1 / 1 threads, row 8x10x10 / 32 threads x 4, col 48 / 16 threads x 1 x 4; 7 tasks; column-reduce: 32 rows x 16 threads a block, 1 tiles < 264 blocks a ...
    const int thread = threadIdx.x;
    const int tx = thread % 16;
    const int ty = thread / 16 % 32;
    const int to = thread / 512;
    const int first = blockIdx.x;
    if (first < 7) {
      const int task = first;
      const int row_tile = task;
      #pragma unroll
      for (int k = 0; k < 4; ++k) {
        const int row = k * 32 + ty + row_tile * 128;
        if (row < 800) {
          {
            const int l = 0;
            const int col = l * 64 + tx * 4;
            if (col < 48) {
              const Vec<float, 4> reduce_sum_14_get_tuple_element_v_0 = *reinterpret_cast<const Vec<float, 4>*>(p_reduce_sum_14_moments_1 + (col));
              Vec<float, 4> div_2_w_0;
              const Vec<float, 4> reduce_sum_15_get_tuple_element_v_0 = *reinterpret_cast<const Vec<float, 4>*>(p_reduce_sum_14_moments_2 + (col));
              Vec<float, 4> div_3_w_0;
              const int at_0__2 = row * 48 + col;
              const Vec<float, 4> x_1_v_0__1 = *reinterpret_cast<const Vec<float, 4>*>(p_x_1 + (at_0__2));
              const Vec<float, 4> gamma_1_v_0 = *reinterpret_cast<const Vec<float, 4>*>(p_gamma_1 + (col));
              const Vec<float, 4> beta_1_v_0 = *reinterpret_cast<const Vec<float, 4>*>(p_beta_1 + (col));
              Vec<float, 4> max_3_w_0;
              const Vec<float, 4> running_mean_1_v_0 = *reinterpret_cast<const Vec<float, 4>*>(p_running_mean_1 + (col));
              Vec<float, 4> add_14_w_0;
              const Vec<float, 4> running_variance_1_v_0 = *reinterpret_cast<const Vec<float, 4>*>(p_running_variance_1 + (col));
              Vec<float, 4> add_15_w_0;
              #pragma unroll
              for (int lane = 0; lane < 4; ++lane) {
                const float reduce_sum_14_get_tuple_element_0 = load_as<float>(reduce_sum_14_get_tuple_element_v_0.v[lane]);
                const float reduce_sum_14_multiply_0 = hlo_multiply(reduce_sum_14_get_tuple_element_0, 800.0f);
                const float div_2 = hlo_divide_shared(reduce_sum_14_multiply_0, 800.0f);
                div_2_w_0.v[lane] = store_as<float>(div_2);
                const float reduce_sum_15_get_tuple_element_0 = load_as<float>(reduce_sum_15_get_tuple_element_v_0.v[lane]);
                const float div_3 = hlo_divide_shared(reduce_sum_15_get_tuple_element_0, 800.0f);
                div_3_w_0.v[lane] = store_as<float>(div_3);
                const float x_1__1 = load_as<float>(x_1_v_0__1.v[lane]);
                const float sub_15 = hlo_subtract(x_1__1, div_2);
                const float add_9 = hlo_add(div_3, 1e-05f);
                const float rsqrt_1 = hlo_rsqrt(add_9);
                const float gamma_1 = load_as<float>(gamma_1_v_0.v[lane]);
                const float mul_9 = hlo_multiply(rsqrt_1, gamma_1);
                const float mul_13 = hlo_multiply(sub_15, mul_9);
                const float beta_1 = load_as<float>(beta_1_v_0.v[lane]);
                const float add_13 = hlo_add(mul_13, beta_1);
                const float max_3 = hlo_maximum(add_13, 0.0f);
                max_3_w_0.v[lane] = store_as<float>(max_3);
                const float running_mean_1 = load_as<float>(running_mean_1_v_0.v[lane]);
                const float mul_14 = hlo_multiply(running_mean_1, 0.9f);
                const float mul_15 = hlo_multiply(div_2, 0.1f);
                const float add_14 = hlo_add(mul_14, mul_15);
                add_14_w_0.v[lane] = store_as<float>(add_14);
                const float running_variance_1 = load_as<float>(running_variance_1_v_0.v[lane]);
                const float mul_16 = hlo_multiply(running_variance_1, 0.9f);
                const float mul_17 = hlo_multiply(div_3, 0.1f);
                const float add_15 = hlo_add(mul_16, mul_17);
                add_15_w_0.v[lane] = store_as<float>(add_15);
              }
              if (row < 1 && row_tile < 1) {
                *reinterpret_cast<Vec<float, 4>*>(p_div_2 + (col)) = div_2_w_0;
              }
              if (row < 1 && row_tile < 1) {
                *reinterpret_cast<Vec<float, 4>*>(p_div_3 + (col)) = div_3_w_0;
              }
              *reinterpret_cast<Vec<float, 4>*>(p_max_3 + (at_0__2)) = max_3_w_0;
              if (row < 1 && row_tile < 1) {
                *reinterpret_cast<Vec<float, 4>*>(p_add_14 + (col)) = add_14_w_0;
              }
              if (row < 1 && row_tile < 1) {
                *reinterpret_cast<Vec<float, 4>*>(p_add_15 + (col)) = add_15_w_0;
              }
            }
          }
        }
      }
    }
  }
}
