#include "astitch.cuh"
// stitch_0: grid 9 x 256 threads, 0 B shared
//   jit(split_heads)/add
//   jit(split_heads)/reshape
//   jit(split_heads)/transpose
extern "C" __global__ void __launch_bounds__(256) stitch_0(
    const float* __restrict__ p_x_1,
    const float* __restrict__ p_bias_1,
    float* __restrict__ p_transpose_1) {
  assume_threads<256>();
  {  // loop 0: outer 1 / 1 threads, row 1 / 1 threads x 1, col 2x6x24x32 / 256 threads x 1 x 4; 9 tasks; element-wise: flat tiles
    const int thread = threadIdx.x;
    const int tx = threadIdx.x;
    const int ty = 0;
    const int to = 0;
    const int first = blockIdx.x;
    {
      const int task = first;
      const int col_tile = task;
      {
        const int k = 0;
        {
          const int l = 0;
          const int col = l * 1024 + tx * 4 + col_tile * 1024;
          const int col_3 = ((col) & 31);
          const int col_2 = ((((col) >> 5)) % 24);
          const int col_1 = ((((col) / 768)) % 6);
          const int col_0 = ((col) / 4608);
          const int at_0 = col_3 + col_2 * 192 + col_1 * 32 + col_0 * 4608;
          const Vec<float, 4> x_1_v_0 = *reinterpret_cast<const Vec<float, 4>*>(p_x_1 + (at_0));
          const int at_0__1 = col_3 + col_1 * 32;
          const Vec<float, 4> bias_1_v_0 = *reinterpret_cast<const Vec<float, 4>*>(p_bias_1 + (at_0__1));
          Vec<float, 4> transpose_1_w_0;
          #pragma unroll
          for (int lane = 0; lane < 4; ++lane) {
            const float x_1 = load_as<float>(x_1_v_0.v[lane]);
            const float bias_1 = load_as<float>(bias_1_v_0.v[lane]);
            const float add_7 = hlo_add(x_1, bias_1);
            transpose_1_w_0.v[lane] = store_as<float>(add_7);
          }
          *reinterpret_cast<Vec<float, 4>*>(p_transpose_1 + (col)) = transpose_1_w_0;
        }
      }
    }
  }
}
