#include "astitch.cuh"
// stitch_0: grid 2 x 512 threads, 0 B shared
//   jit(indexed_updates)/lt
//   jit(indexed_updates)/add
//   jit(indexed_updates)/select_n
//   jit(indexed_updates)/scatter-add
//   jit(indexed_updates)/slice
//   jit(indexed_updates)/scatter-mul
//   jit(indexed_updates)/scatter
//   jit(indexed_updates)/reduce_sum
//   and 4 more
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
extern "C" __global__ void __launch_bounds__(512, 2) stitch_0(
    const int* __restrict__ p_columns_1,
    const float* __restrict__ p_x_1,
    const float* __restrict__ p_y_1,
    const int* __restrict__ p_lt_14_reshape_0,
    const int* __restrict__ p_add_18_reshape_0,
    float* __restrict__ p_scatter_add_10,
    float* __restrict__ p_scatter_mul_5,
    float* __restrict__ p_scatter_5,
    float* __restrict__ p_scatter_add_11,
    float* __restrict__ p_scatter_max_5,
    unsigned char* scratch,
    unsigned int* barrier) {
  float* const p_reduce_sum_7 = reinterpret_cast<float*>(scratch + 0);
  assume_threads<512>();
  {  // loop 0: outer 1 / 1 threads, row 1 / 1 threads x 1, col 20x30 / 512 threads x 1 x 2; 1 tasks; element-wise: flat tiles
    const int thread = threadIdx.x;
    const int tx = threadIdx.x;
    const int ty = 0;
    const int to = 0;
    const int first = blockIdx.x;
    if (first < 1) {
      const int task = first;
      {
        const int k = 0;
        {
          const int l = 0;
          const int col = l * 1024 + tx * 2;
          if (col < 600) {
            const int col_0 = ((col) / 30);
            const int columns_1 = load_as<int>(p_columns_1[col_0]);
            const bool lt_9 = hlo_compare_lt(columns_1, 0);
            const int add_13 = hlo_add(columns_1, 30);
            const int select_n_9 = (lt_9 ? add_13 : columns_1);
            const int col_1 = ((col) % 30);
            const Vec<float, 2> x_1_v_0 = *reinterpret_cast<const Vec<float, 2>*>(p_x_1 + (col));
            const float y_1 = load_as<float>(p_y_1[col_0]);
            Vec<float, 2> scatter_add_10_w_0;
            int scatter_mul_5_pad_0;
            if (col_0 < 15) {
              const bool lt_11 = hlo_compare_lt(columns_1, 0);
              const int add_15 = hlo_add(columns_1, 30);
              const int select_n_11 = (lt_11 ? add_15 : columns_1);
              scatter_mul_5_pad_0 = select_n_11;
            } else {
              scatter_mul_5_pad_0 = 0;
            }
            const int scatter_mul_5_iota_2 = hlo_convert<int>(col_0);
            const bool scatter_mul_5_compare_2 = hlo_compare_gt(15, scatter_mul_5_iota_2);
            float scatter_mul_5_pad_2;
            if (col_0 < 15) {
              scatter_mul_5_pad_2 = y_1;
            } else {
              scatter_mul_5_pad_2 = 0.0f;
            }
            Vec<float, 2> scatter_mul_5_w_0;
            const int iota_1 = hlo_convert<int>(col_0);
            Vec<float, 2> scatter_5_w_0;
            const int clamp_1_clamp_0 = hlo_clamp(0, select_n_9, 29);
            const float scatter_add_11_add_0 = hlo_add(0.0f, y_1);
            Vec<float, 2> scatter_add_11_w_0;
            #pragma unroll
            for (int lane = 0; lane < 2; ++lane) {
              const int scatter_add_10_iota_0 = hlo_convert<int>(col_1 + lane);
              const bool scatter_add_10_compare_0 = hlo_compare_eq(select_n_9, scatter_add_10_iota_0);
              const float x_1 = load_as<float>(x_1_v_0.v[lane]);
              const float scatter_add_10_add_0 = hlo_add(x_1, y_1);
              const float scatter_add_10 = (scatter_add_10_compare_0 ? scatter_add_10_add_0 : x_1);
              scatter_add_10_w_0.v[lane] = store_as<float>(scatter_add_10);
              const bool scatter_mul_5_compare_0 = hlo_compare_eq(scatter_mul_5_pad_0, scatter_add_10_iota_0);
              const bool scatter_mul_5_and_0 = hlo_and(scatter_mul_5_compare_0, scatter_mul_5_compare_2);
              const float scatter_mul_5_multiply_0 = hlo_multiply(x_1, scatter_mul_5_pad_2);
              const float scatter_mul_5 = (scatter_mul_5_and_0 ? scatter_mul_5_multiply_0 : x_1);
              scatter_mul_5_w_0.v[lane] = store_as<float>(scatter_mul_5);
              const bool scatter_5_compare_0 = hlo_compare_eq(iota_1, scatter_add_10_iota_0);
              const float scatter_5 = (scatter_5_compare_0 ? y_1 : x_1);
              scatter_5_w_0.v[lane] = store_as<float>(scatter_5);
              const bool scatter_add_11_compare_0 = hlo_compare_eq(clamp_1_clamp_0, scatter_add_10_iota_0);
              const float scatter_add_11 = (scatter_add_11_compare_0 ? scatter_add_11_add_0 : 0.0f);
              scatter_add_11_w_0.v[lane] = store_as<float>(scatter_add_11);
            }
            *reinterpret_cast<Vec<float, 2>*>(p_scatter_add_10 + (col)) = scatter_add_10_w_0;
            *reinterpret_cast<Vec<float, 2>*>(p_scatter_mul_5 + (col)) = scatter_mul_5_w_0;
            *reinterpret_cast<Vec<float, 2>*>(p_scatter_5 + (col)) = scatter_5_w_0;
            *reinterpret_cast<Vec<float, 2>*>(p_scatter_add_11 + (col)) = scatter_add_11_w_0;
          }
        }
      }
    }
  }
  {  // loop 1: outer 1 / 64 threads, row 1 / 1 threads x 1, col 20 / 8 threads x 1 x 4; 1 tasks; row-reduce: 64 rows a block, 8 threads a row
    const int thread = threadIdx.x;
    const int tx = threadIdx.x % 8;
    const int ty = 0;
    const int to = threadIdx.x / 8;
    const int first = int(blockIdx.x) - 1;
    if (first >= 0) {
      const int task = first;
      Reduce0::State reduce_sum_7_state_0[1];
      #pragma unroll
      for (int i = 0; i < 1; ++i) reduce_sum_7_state_0[i] = Reduce0::identity();
      {
        const int k = 0;
        {
          const int l = 0;
          const int col = l * 32 + tx * 4;
          if (col < 20) {
            const Vec<float, 4> y_1_v_0 = *reinterpret_cast<const Vec<float, 4>*>(p_y_1 + (col));
            #pragma unroll
            for (int lane = 0; lane < 4; ++lane) {
              const float y_1__1 = load_as<float>(y_1_v_0.v[lane]);
              if (to < 1) {
                reduce_sum_7_state_0[0] = Reduce0::combine(reduce_sum_7_state_0[0], Reduce0::State{y_1__1});
              }
            }
          }
        }
      }
      reduce_lanes<Reduce0, 8, 1>(reduce_sum_7_state_0);
      const float reduce_sum_7 = reduce_sum_7_state_0[0].f0;
      if (to < 1 && tx < 1) {
        p_reduce_sum_7[0] = store_as<float>(reduce_sum_7);
      }
    }
  }
  ASTITCH_GLOBAL_BARRIER(barrier);  // Global: %reduce_sum.7 before level 1
  {  // loop 2: outer 1 / 1 threads, row 1 / 1 threads x 1, col 20x30 / 512 threads x 1 x 2; 1 tasks; element-wise: flat tiles
    const int thread = threadIdx.x;
    const int tx = threadIdx.x;
    const int ty = 0;
    const int to = 0;
    const int first = blockIdx.x;
    if (first < 1) {
      const int columns_1__1 = load_as<int>(p_columns_1[0]);
      const int lt_14_reshape_0 = load_as<int>(p_lt_14_reshape_0[0]);
      const bool lt_14_compare_0 = hlo_compare_lt(columns_1__1, lt_14_reshape_0);
      const int add_18_reshape_0 = load_as<int>(p_add_18_reshape_0[0]);
      const int add_18_add_0 = hlo_add(columns_1__1, add_18_reshape_0);
      const int select_n_14_select_0 = (lt_14_compare_0 ? add_18_add_0 : columns_1__1);
      const float reduce_sum_7__1 = load_as<float>(p_reduce_sum_7[0]);
      const float div_1 = hlo_divide(reduce_sum_7__1, 20.0f);
      {
        const int task = first;
        {
          const int k = 0;
          {
            const int l = 0;
            const int col = l * 1024 + tx * 2;
            if (col < 600) {
              const int col_0__1 = ((col) / 30);
              const int scatter_mul_5_iota_2__1 = hlo_convert<int>(col_0__1);
              const bool scatter_max_5_compare_0 = hlo_compare_eq(select_n_14_select_0, scatter_mul_5_iota_2__1);
              const Vec<float, 2> x_1_v_0__1 = *reinterpret_cast<const Vec<float, 2>*>(p_x_1 + (col));
              Vec<float, 2> scatter_max_5_w_0;
              #pragma unroll
              for (int lane = 0; lane < 2; ++lane) {
                const float x_1__1 = load_as<float>(x_1_v_0__1.v[lane]);
                const float scatter_max_5_maximum_0 = hlo_maximum(x_1__1, div_1);
                const float scatter_max_5 = (scatter_max_5_compare_0 ? scatter_max_5_maximum_0 : x_1__1);
                scatter_max_5_w_0.v[lane] = store_as<float>(scatter_max_5);
              }
              *reinterpret_cast<Vec<float, 2>*>(p_scatter_max_5 + (col)) = scatter_max_5_w_0;
            }
          }
        }
      }
    }
  }
}
