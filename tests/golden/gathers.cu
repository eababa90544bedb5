#include "astitch.cuh"
// stitch_0: grid 3 x 256 threads, 0 B shared
//   lt
//   add
//   select_n
//   broadcast_in_dim
//   ge
//   le
//   and
//   gather
//   and 3 more
extern "C" __global__ void __launch_bounds__(256) stitch_0(
    const int* __restrict__ p_rows_1,
    const float* __restrict__ p_table_1,
    const int* __restrict__ p_along_1,
    float* __restrict__ p_gather_1,
    float* __restrict__ p_select_n_3,
    float* __restrict__ p_mul_3,
    float* __restrict__ p_slice_1) {
  assume_threads<256>();
  {  // loop 0: outer 1 / 1 threads, row 1 / 1 threads x 1, col 25x40 / 256 threads x 1 x 4; 1 tasks; element-wise: flat tiles
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
          const int col = l * 1024 + tx * 4;
          if (col < 1000) {
            const int col_0 = ((col) / 40);
            const int rows_1 = load_as<int>(p_rows_1[col_0]);
            const bool lt_1 = hlo_compare_lt(rows_1, 0);
            const int add_1 = hlo_add(rows_1, 30);
            const int select_n_1 = (lt_1 ? add_1 : rows_1);
            const int start_0 = (int)hlo_clamp((int)0, (int)select_n_1, (int)29);
            const int col_1 = ((col) % 40);
            const int at_0 = start_0 * 40 + col_1;
            const Vec<float, 4> table_1_v_0 = *reinterpret_cast<const Vec<float, 4>*>(p_table_1 + (at_0));
            Vec<float, 4> gather_1_w_0;
            const bool ge_1_compare_0 = hlo_compare_ge(select_n_1, 0);
            const bool le_1_compare_0 = hlo_compare_le(select_n_1, 29);
            const bool and_1_and_0 = hlo_and(ge_1_compare_0, le_1_compare_0);
            Vec<float, 4> select_n_3_w_0;
            #pragma unroll
            for (int lane = 0; lane < 4; ++lane) {
              const float table_1 = load_as<float>(table_1_v_0.v[lane]);
              gather_1_w_0.v[lane] = store_as<float>(table_1);
              const float select_n_3 = (and_1_and_0 ? table_1 : 0.0f);
              select_n_3_w_0.v[lane] = store_as<float>(select_n_3);
            }
            *reinterpret_cast<Vec<float, 4>*>(p_gather_1 + (col)) = gather_1_w_0;
            *reinterpret_cast<Vec<float, 4>*>(p_select_n_3 + (col)) = select_n_3_w_0;
          }
        }
      }
    }
  }
  {  // loop 1: outer 1 / 1 threads, row 1 / 1 threads x 1, col 30x6 / 256 threads x 1 x 2; 1 tasks; element-wise: flat tiles
    const int thread = threadIdx.x;
    const int tx = threadIdx.x;
    const int ty = 0;
    const int to = 0;
    const int first = int(blockIdx.x) - 1;
    if (first >= 0 && first < 1) {
      const int task = first;
      {
        const int k = 0;
        {
          const int l = 0;
          const int col = l * 512 + tx * 2;
          if (col < 180) {
            const Vec<int, 2> along_1_v_0 = *reinterpret_cast<const Vec<int, 2>*>(p_along_1 + (col));
            const int col_0__1 = ((col) / 6);
            Vec<float, 2> mul_3_w_0;
            #pragma unroll
            for (int lane = 0; lane < 2; ++lane) {
              const int along_1 = load_as<int>(along_1_v_0.v[lane]);
              const bool lt_6 = hlo_compare_lt(along_1, 0);
              const int add_6 = hlo_add(along_1, 40);
              const int select_n_7 = (lt_6 ? add_6 : along_1);
              const bool ge_5_compare_0 = hlo_compare_ge(select_n_7, 0);
              const bool le_5_compare_0 = hlo_compare_le(select_n_7, 39);
              const bool and_3_and_0 = hlo_and(ge_5_compare_0, le_5_compare_0);
              const int start_0__1 = (int)hlo_clamp((int)0, (int)select_n_7, (int)39);
              const int at_0__1 = start_0__1 + col_0__1 * 40;
              const float table_1__1 = load_as<float>(p_table_1[at_0__1]);
              const float select_n_8 = (and_3_and_0 ? table_1__1 : same_bits<float>(0x7fc00000u));
              const float mul_3 = hlo_multiply(select_n_8, 2.0f);
              mul_3_w_0.v[lane] = store_as<float>(mul_3);
            }
            *reinterpret_cast<Vec<float, 2>*>(p_mul_3 + (col)) = mul_3_w_0;
          }
        }
      }
    }
  }
  {  // loop 2: outer 1 / 1 threads, row 1 / 1 threads x 1, col 30x7 / 256 threads x 1 x 1; 1 tasks; element-wise: flat tiles
    const int thread = threadIdx.x;
    const int tx = threadIdx.x;
    const int ty = 0;
    const int to = 0;
    const int first = int(blockIdx.x) - 2;
    if (first >= 0) {
      const int task = first;
      {
        const int k = 0;
        {
          const int l = 0;
          const int col = l * 256 + tx;
          if (col < 210) {
            const int col_1__1 = ((col) % 7);
            const int col_0__2 = ((col) / 7);
            const int at_0__2 = col_1__1 * 4 + col_0__2 * 40 + 3;
            const float table_1__2 = load_as<float>(p_table_1[at_0__2]);
            p_slice_1[col] = store_as<float>(table_1__2);
          }
        }
      }
    }
  }
}
