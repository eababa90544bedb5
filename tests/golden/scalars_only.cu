#include "astitch.cuh"
// stitch_0: grid 3 x 256 threads, 0 B shared
//   jit(scalars_only)/exp
//   jit(scalars_only)/mul
//   jit(scalars_only)/convert_element_type
//   jit(scalars_only)/add
//   jit(scalars_only)/gt
//   select_n
//   jit(scalars_only)/sub
extern "C" __global__ void __launch_bounds__(256) stitch_0(
    const float* __restrict__ p_x_1,
    const float* __restrict__ p_y_1,
    const int* __restrict__ p_n_1,
    float* __restrict__ p_add_1,
    float* __restrict__ p_select_n_1,
    int* __restrict__ p_sub_1) {
  assume_threads<256>();
  {  // loop 0: outer 1 / 1 threads, row 1 / 1 threads x 1, col 1 / 256 threads x 1 x 1; 1 tasks; element-wise: flat tiles
    const int thread = threadIdx.x;
    const int tx = threadIdx.x;
    const int ty = 0;
    const int to = 0;
    const int first = blockIdx.x;
    if (first < 1) {
      const float x_1 = load_as<float>(p_x_1[0]);
      const float exp_1 = hlo_exp(x_1);
      const float y_1 = load_as<float>(p_y_1[0]);
      const float mul_2 = hlo_multiply(exp_1, y_1);
      const int n_1 = load_as<int>(p_n_1[0]);
      const float convert_element_type_1 = hlo_convert<float, int>(n_1);
      const float add_1 = hlo_add(mul_2, convert_element_type_1);
      {
        const int task = first;
        if (tx < 1) {
          p_add_1[0] = store_as<float>(add_1);
        }
      }
    }
  }
  {  // loop 1: outer 1 / 1 threads, row 1 / 1 threads x 1, col 1 / 256 threads x 1 x 1; 1 tasks; element-wise: flat tiles
    const int thread = threadIdx.x;
    const int tx = threadIdx.x;
    const int ty = 0;
    const int to = 0;
    const int first = int(blockIdx.x) - 1;
    if (first >= 0 && first < 1) {
      const int n_1__1 = load_as<int>(p_n_1[0]);
      const bool gt_1 = hlo_compare_gt(n_1__1, 0);
      const float x_1__1 = load_as<float>(p_x_1[0]);
      const float y_1__1 = load_as<float>(p_y_1[0]);
      const float select_n_1 = (gt_1 ? x_1__1 : y_1__1);
      {
        const int task = first;
        if (tx < 1) {
          p_select_n_1[0] = store_as<float>(select_n_1);
        }
      }
    }
  }
  {  // loop 2: outer 1 / 1 threads, row 1 / 1 threads x 1, col 1 / 256 threads x 1 x 1; 1 tasks; element-wise: flat tiles
    const int thread = threadIdx.x;
    const int tx = threadIdx.x;
    const int ty = 0;
    const int to = 0;
    const int first = int(blockIdx.x) - 2;
    if (first >= 0) {
      const int n_1__2 = load_as<int>(p_n_1[0]);
      const int mul_3 = hlo_multiply(n_1__2, n_1__2);
      const int sub_1 = hlo_subtract(mul_3, 3);
      {
        const int task = first;
        if (tx < 1) {
          p_sub_1[0] = store_as<int>(sub_1);
        }
      }
    }
  }
}
