#include "astitch.cuh"
// stitch_0: grid 4 x 256 threads, 0 B shared
//   jit(dynamic_slices)/lt
//   jit(dynamic_slices)/add
//   jit(dynamic_slices)/select_n
//   jit(dynamic_slices)/dynamic_slice
//   jit(dynamic_slices)/mul
//   jit(dynamic_slices)/dynamic_update_slice
//   jit(dynamic_slices)/exp
//   jit(dynamic_slices)/reduce_sum
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
extern "C" __global__ void __launch_bounds__(256) stitch_0(
    const int* __restrict__ p_row_1,
    const int* __restrict__ p_column_1,
    const float* __restrict__ p_x_1,
    const float* __restrict__ p_update_1,
    float* __restrict__ p_mul_3,
    float* __restrict__ p_add_12,
    float* __restrict__ p_reduce_sum_7) {
  assume_threads<256>();
  {  // loop 0: outer 1 / 1 threads, row 1 / 1 threads x 1, col 6x7 / 256 threads x 1 x 1; 1 tasks; element-wise: flat tiles
    const int thread = threadIdx.x;
    const int tx = threadIdx.x;
    const int ty = 0;
    const int to = 0;
    const int first = blockIdx.x;
    if (first < 1) {
      const int row_1 = load_as<int>(p_row_1[0]);
      const bool lt_5 = hlo_compare_lt(row_1, 0);
      const int add_8 = hlo_add(row_1, 20);
      const int select_n_5 = (lt_5 ? add_8 : row_1);
      const int start_0 = (int)hlo_clamp((int)0, (int)select_n_5, (int)14);
      const int column_1 = load_as<int>(p_column_1[0]);
      const bool lt_6 = hlo_compare_lt(column_1, 0);
      const int add_9 = hlo_add(column_1, 30);
      const int select_n_6 = (lt_6 ? add_9 : column_1);
      const int start_0__1 = (int)hlo_clamp((int)0, (int)select_n_6, (int)23);
      {
        const int task = first;
        {
          const int k = 0;
          {
            const int l = 0;
            const int col = l * 256 + tx;
            if (col < 42) {
              const int col_1 = ((col) % 7);
              const int col_0 = ((col) / 7);
              const int at_0 = start_0__1 + start_0 * 30 + col_1 + col_0 * 30;
              const float x_1 = load_as<float>(p_x_1[at_0]);
              const float mul_3 = hlo_multiply(x_1, 2.0f);
              p_mul_3[col] = store_as<float>(mul_3);
            }
          }
        }
      }
    }
  }
  {  // loop 1: outer 1 / 1 threads, row 1 / 1 threads x 1, col 20x30 / 256 threads x 1 x 2; 2 tasks; element-wise: flat tiles
    const int thread = threadIdx.x;
    const int tx = threadIdx.x;
    const int ty = 0;
    const int to = 0;
    const int first = int(blockIdx.x) - 1;
    if (first >= 0 && first < 2) {
      const int row_1__1 = load_as<int>(p_row_1[0]);
      const bool lt_5__1 = hlo_compare_lt(row_1__1, 0);
      const int add_8__1 = hlo_add(row_1__1, 20);
      const int select_n_5__1 = (lt_5__1 ? add_8__1 : row_1__1);
      const int start_0__2 = (int)hlo_clamp((int)0, (int)select_n_5__1, (int)16);
      const int column_1__1 = load_as<int>(p_column_1[0]);
      const bool lt_6__1 = hlo_compare_lt(column_1__1, 0);
      const int add_9__1 = hlo_add(column_1__1, 30);
      const int select_n_6__1 = (lt_6__1 ? add_9__1 : column_1__1);
      const int start_0__3 = (int)hlo_clamp((int)0, (int)select_n_6__1, (int)25);
      {
        const int task = first;
        const int col_tile = task;
        {
          const int k = 0;
          {
            const int l = 0;
            const int col = l * 512 + tx * 2 + col_tile * 512;
            if (col < 600) {
              const int col_0__1 = ((col) / 30);
              const int col_1__1 = ((col) % 30);
              Vec<float, 2> add_12_w_0;
              #pragma unroll
              for (int lane = 0; lane < 2; ++lane) {
                float dynamic_update_slice_1;
                if (start_0__2 * -1 + col_0__1 >= 0 && start_0__2 * -1 + col_0__1 < 4 && start_0__3 * -1 + col_1__1 + lane >= 0 && start_0__3 * -1 + col_1__1 + lane < 5) {
                  const int at_0__1 = start_0__3 * -1 + start_0__2 * -5 + col_1__1 + col_0__1 * 5;
                  const float update_1 = load_as<float>(p_update_1[at_0__1 + lane]);
                  dynamic_update_slice_1 = update_1;
                } else {
                  const float x_1__1 = load_as<float>(p_x_1[col + lane]);
                  dynamic_update_slice_1 = x_1__1;
                }
                const float add_12 = hlo_add(dynamic_update_slice_1, 1.0f);
                add_12_w_0.v[lane] = store_as<float>(add_12);
              }
              *reinterpret_cast<Vec<float, 2>*>(p_add_12 + (col)) = add_12_w_0;
            }
          }
        }
      }
    }
  }
  {  // loop 2: outer 1 / 16 threads, row 1 / 1 threads x 1, col 30 / 16 threads x 1 x 2; 1 tasks; row-reduce: 16 rows a block, 16 threads a row
    const int thread = threadIdx.x;
    const int tx = threadIdx.x % 16;
    const int ty = 0;
    const int to = threadIdx.x / 16;
    const int first = int(blockIdx.x) - 3;
    if (first >= 0) {
      const int row_1__2 = load_as<int>(p_row_1[0]);
      const bool lt_5__2 = hlo_compare_lt(row_1__2, 0);
      const int add_8__2 = hlo_add(row_1__2, 20);
      const int select_n_5__2 = (lt_5__2 ? add_8__2 : row_1__2);
      const int start_0__4 = (int)hlo_clamp((int)0, (int)select_n_5__2, (int)19);
      {
        const int task = first;
        Reduce0::State reduce_sum_7_state_0[1];
        #pragma unroll
        for (int i = 0; i < 1; ++i) reduce_sum_7_state_0[i] = Reduce0::identity();
        {
          const int k = 0;
          {
            const int l = 0;
            const int col = l * 32 + tx * 2;
            if (col < 30) {
              const int at_0__2 = start_0__4 * 30 + col;
              const Vec<float, 2> x_1_v_0 = *reinterpret_cast<const Vec<float, 2>*>(p_x_1 + (at_0__2));
              #pragma unroll
              for (int lane = 0; lane < 2; ++lane) {
                const float x_1__2 = load_as<float>(x_1_v_0.v[lane]);
                const float exp_1 = hlo_exp(x_1__2);
                if (to < 1) {
                  reduce_sum_7_state_0[0] = Reduce0::combine(reduce_sum_7_state_0[0], Reduce0::State{exp_1});
                }
              }
            }
          }
        }
        reduce_lanes<Reduce0, 16, 1>(reduce_sum_7_state_0);
        const float reduce_sum_7 = reduce_sum_7_state_0[0].f0;
        if (to < 1 && tx < 1) {
          p_reduce_sum_7[0] = store_as<float>(reduce_sum_7);
        }
      }
    }
  }
}
