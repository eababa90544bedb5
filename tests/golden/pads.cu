#include "astitch.cuh"
// stitch_0: grid 6 x 256 threads, 0 B shared
//   jit(pads)/pad
//   jit(pads)/mul
extern "C" __global__ void __launch_bounds__(256) stitch_0(
    const float* __restrict__ p_x_1,
    const float* __restrict__ p_value_1,
    float* __restrict__ p_pad_4,
    float* __restrict__ p_pad_5,
    float* __restrict__ p_mul_3,
    float* __restrict__ p_pad_7) {
  assume_threads<256>();
  if (blockIdx.x < 2) {
    {  // loop 0: outer 1 / 1 threads, row 1 / 1 threads x 1, col 14x12 / 256 threads x 1 x 4; 1 tasks; element-wise: flat tiles
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
            if (col < 168) {
              const int col_0 = ((col) / 12);
              const int col_1 = ((col) % 12);
              Vec<float, 4> pad_4_w_0;
              #pragma unroll
              for (int lane = 0; lane < 4; ++lane) {
                float pad_4;
                if (col_0 - 2 >= 0 && col_0 - 2 < 9 && col_1 + lane < 11) {
                  const int at_0 = col_1 + col_0 * 11 - 22;
                  const float x_1 = load_as<float>(p_x_1[at_0 + lane]);
                  pad_4 = x_1;
                } else {
                  const float value_1 = load_as<float>(p_value_1[0]);
                  pad_4 = value_1;
                }
                pad_4_w_0.v[lane] = store_as<float>(pad_4);
              }
              *reinterpret_cast<Vec<float, 4>*>(p_pad_4 + (col)) = pad_4_w_0;
            }
          }
        }
      }
    }
    {  // loop 1: outer 1 / 1 threads, row 1 / 1 threads x 1, col 8x10 / 256 threads x 1 x 1; 1 tasks; element-wise: flat tiles
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
            if (col < 80) {
              const int col_0__1 = ((col) / 10);
              const int col_1__1 = ((col) % 10);
              float pad_5;
              if (col_0__1 + 2 < 9 && col_1__1 - 3 >= 0) {
                const int at_0__1 = col_1__1 + col_0__1 * 11 + 19;
                const float x_1__1 = load_as<float>(p_x_1[at_0__1]);
                pad_5 = x_1__1;
              } else {
                const float value_1__1 = load_as<float>(p_value_1[0]);
                pad_5 = value_1__1;
              }
              p_pad_5[col] = store_as<float>(pad_5);
            }
          }
        }
      }
    }
  } else {
    {  // loop 2: outer 1 / 1 threads, row 1 / 1 threads x 1, col 25x21 / 256 threads x 1 x 1; 3 tasks; element-wise: flat tiles
      const int thread = threadIdx.x;
      const int tx = threadIdx.x;
      const int ty = 0;
      const int to = 0;
      const int first = int(blockIdx.x) - 2;
      if (first >= 0 && first < 3) {
        const int task = first;
        const int col_tile = task;
        {
          const int k = 0;
          {
            const int l = 0;
            const int col = l * 256 + tx + col_tile * 256;
            if (col < 525) {
              const int col_0__2 = ((col) / 21);
              const int col_1__2 = ((col) % 21);
              float pad_6;
              if ((col_0__2) % 3 == 0 && (col_1__2) % 2 == 0) {
                const int at_0__2 = ((col_1__2) >> 1) + ((col_0__2) / 3) * 11;
                const float x_1__2 = load_as<float>(p_x_1[at_0__2]);
                pad_6 = x_1__2;
              } else {
                const float value_1__2 = load_as<float>(p_value_1[0]);
                pad_6 = value_1__2;
              }
              const float mul_3 = hlo_multiply(pad_6, 2.0f);
              p_mul_3[col] = store_as<float>(mul_3);
            }
          }
        }
      }
    }
    {  // loop 3: outer 1 / 1 threads, row 1 / 1 threads x 1, col 21x40 / 256 threads x 1 x 4; 1 tasks; element-wise: flat tiles
      const int thread = threadIdx.x;
      const int tx = threadIdx.x;
      const int ty = 0;
      const int to = 0;
      const int first = int(blockIdx.x) - 5;
      if (first >= 0) {
        const int task = first;
        {
          const int k = 0;
          {
            const int l = 0;
            const int col = l * 1024 + tx * 4;
            if (col < 840) {
              const int col_0__3 = ((col) / 40);
              const int col_1__3 = ((col) % 40);
              Vec<float, 4> pad_7_w_0;
              #pragma unroll
              for (int lane = 0; lane < 4; ++lane) {
                float pad_7;
                if ((col_0__3 + 3) % 3 == 0 && col_1__3 + lane - 1 >= 0 && col_1__3 + lane - 1 < 41 && (col_1__3 + lane - 1) % 4 == 0) {
                  const float x_1__3 = load_as<float>(p_x_1[((col_1__3 + lane + 3) >> 2) + ((col_0__3) / 3) * 11 + 10]);
                  pad_7 = x_1__3;
                } else {
                  const float value_1__3 = load_as<float>(p_value_1[0]);
                  pad_7 = value_1__3;
                }
                pad_7_w_0.v[lane] = store_as<float>(pad_7);
              }
              *reinterpret_cast<Vec<float, 4>*>(p_pad_7 + (col)) = pad_7_w_0;
            }
          }
        }
      }
    }
  }
}
