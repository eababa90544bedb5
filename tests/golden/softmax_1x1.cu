#include "astitch.cuh"
// stitch_0: grid 1 x 256 threads, 0 B shared
//   jit(softmax)/sub
//   jit(softmax)/exp
//   jit(softmax)/reduce_sum
//   jit(softmax)/div
extern "C" __global__ void __launch_bounds__(256) stitch_0(
    const float* __restrict__ p_x_1,
    const float* __restrict__ p_reduce_sum_7_reshape_2,
    float* __restrict__ p_div_1) {
  assume_threads<256>();
  {  // loop 0: outer 1 / 1 threads, row 1 / 1 threads x 1, col 1 / 256 threads x 1 x 1; 1 tasks; element-wise: flat tiles
    const int thread = threadIdx.x;
    const int tx = threadIdx.x;
    const int ty = 0;
    const int to = 0;
    const int first = blockIdx.x;
    const float x_1 = load_as<float>(p_x_1[0]);
    const float sub_1 = hlo_subtract(x_1, x_1);
    const float exp_1 = hlo_exp(sub_1);
    const float reduce_sum_7_reshape_2 = load_as<float>(p_reduce_sum_7_reshape_2[0]);
    const float reduce_sum_7_add_0 = hlo_add(reduce_sum_7_reshape_2, exp_1);
    const float div_1 = hlo_divide(exp_1, reduce_sum_7_add_0);
    {
      const int task = first;
      if (tx < 1) {
        p_div_1[0] = store_as<float>(div_1);
      }
    }
  }
}
