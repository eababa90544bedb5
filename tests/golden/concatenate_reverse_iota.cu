#include "astitch.cuh"
// stitch_0: grid 3 x 256 threads, 0 B shared
//   jit(concatenate_reverse_iota)/rev
//   jit(concatenate_reverse_iota)/concatenate
//   jit(concatenate_reverse_iota)/slice
//   jit(concatenate_reverse_iota)/mul
//   jit(concatenate_reverse_iota)/add
//   rem
//   jit(concatenate_reverse_iota)/eq
//   jit(concatenate_reverse_iota)/neg
//   and 1 more
extern "C" __global__ void __launch_bounds__(256) stitch_0(
    const float* __restrict__ p_x_1,
    const float* __restrict__ p_y_1,
    const float* __restrict__ p_z_1,
    float* __restrict__ p_rev_4,
    int* __restrict__ p_add_5,
    float* __restrict__ p_select_n_5,
    float* __restrict__ p_rev_5) {
  assume_threads<256>();
  {  // loop 0: outer 1 / 1 threads, row 1 / 1 threads x 1, col 10x9 / 256 threads x 1 x 1; 1 tasks; element-wise: flat tiles
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
          const int col = l * 256 + tx;
          if (col < 90) {
            const int col_0 = ((col) / 9);
            float concatenate_3;
            if (col_0 * -1 + 9 < 6) {
              const int col_1 = ((col) % 9);
              float concatenate_2;
              if (col_1 * 2 < 10) {
                const int at_0 = col_1 * 2 + col_0 * -10 + 90;
                const float x_1 = load_as<float>(p_x_1[at_0]);
                concatenate_2 = x_1;
              } else {
                const int at_0__1 = col_1 * -2 + col_0 * -7 + 79;
                const float y_1 = load_as<float>(p_y_1[at_0__1]);
                concatenate_2 = y_1;
              }
              concatenate_3 = concatenate_2;
            } else {
              const int col_1__1 = ((col) % 9);
              const int at_0__2 = col_1__1 * 2 + col_0 * -17 + 51;
              const float z_1 = load_as<float>(p_z_1[at_0__2]);
              concatenate_3 = z_1;
            }
            p_rev_4[col] = store_as<float>(concatenate_3);
          }
        }
      }
    }
  }
  {  // loop 1: outer 1 / 1 threads, row 1 / 1 threads x 1, col 10x17 / 256 threads x 1 x 1; 1 tasks; element-wise: flat tiles
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
          const int col = l * 256 + tx;
          if (col < 170) {
            const int col_0__1 = ((col) / 17);
            const int iota_4 = hlo_convert<int>(col_0__1);
            const int mul_3 = hlo_multiply(iota_4, 17);
            const int col_1__2 = ((col) % 17);
            const int iota_6 = hlo_convert<int>(col_1__2);
            const int add_5 = hlo_add(mul_3, iota_6);
            p_add_5[col] = store_as<int>(add_5);
            const int rem_3 = hlo_remainder(add_5, 3);
            const bool eq_5 = hlo_compare_eq(rem_3, 0);
            float concatenate_3__1;
            if (col_0__1 < 6) {
              float concatenate_2__1;
              if (col_1__2 < 10) {
                const int at_0__3 = col_1__2 + col_0__1 * 10;
                const float x_1__1 = load_as<float>(p_x_1[at_0__3]);
                concatenate_2__1 = x_1__1;
              } else {
                const int at_0__4 = col_1__2 * -1 + col_0__1 * 7 + 16;
                const float y_1__1 = load_as<float>(p_y_1[at_0__4]);
                concatenate_2__1 = y_1__1;
              }
              concatenate_3__1 = concatenate_2__1;
            } else {
              const float z_1__1 = load_as<float>(p_z_1[col - 102]);
              concatenate_3__1 = z_1__1;
            }
            const float neg_1 = hlo_negate(concatenate_3__1);
            const float select_n_5 = (eq_5 ? concatenate_3__1 : neg_1);
            p_select_n_5[col] = store_as<float>(select_n_5);
          }
        }
      }
    }
  }
  {  // loop 2: outer 1 / 1 threads, row 1 / 1 threads x 1, col 10x17 / 256 threads x 1 x 1; 1 tasks; element-wise: flat tiles
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
          if (col < 170) {
            const int col_0__2 = ((col) / 17);
            float concatenate_3__2;
            if (col_0__2 * -1 + 9 < 6) {
              const int col_1__3 = ((col) % 17);
              float concatenate_2__2;
              if (col_1__3 * -1 + 16 < 10) {
                const int at_0__5 = col_1__3 * -1 + col_0__2 * -10 + 106;
                const float x_1__2 = load_as<float>(p_x_1[at_0__5]);
                concatenate_2__2 = x_1__2;
              } else {
                const int at_0__6 = col_1__3 + col_0__2 * -7 + 63;
                const float y_1__2 = load_as<float>(p_y_1[at_0__6]);
                concatenate_2__2 = y_1__2;
              }
              concatenate_3__2 = concatenate_2__2;
            } else {
              const float z_1__2 = load_as<float>(p_z_1[col * -1 + 67]);
              concatenate_3__2 = z_1__2;
            }
            p_rev_5[col] = store_as<float>(concatenate_3__2);
          }
        }
      }
    }
  }
}
