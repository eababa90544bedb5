#include "astitch.cuh"
// stitch_0: grid 1 x 512 threads, 0 B shared
//   jit(power_broadcast_add)/pow
//   jit(power_broadcast_add)/add
extern "C" __global__ void __launch_bounds__(512, 2) stitch_0(
    const float* __restrict__ p_x_1,
    const float* __restrict__ p_y_1,
    float* __restrict__ p_add_7,
    unsigned char* scratch,
    unsigned int* barrier) {
  float* const p_pow_1 = reinterpret_cast<float*>(scratch + 0);
  assume_threads<512>();
  {  // loop 0: outer 1 / 1 threads, row 1 / 1 threads x 1, col 2 / 512 threads x 1 x 2; 1 tasks; element-wise: flat tiles
    const int thread = threadIdx.x;
    const int tx = threadIdx.x;
    const int ty = 0;
    const int to = 0;
    const int first = blockIdx.x;
    {
      const int task = first;
      {
        const int k = 0;
        {
          const int l = 0;
          const int col = l * 1024 + tx * 2;
          if (col < 2) {
            const Vec<float, 2> x_1_v_0 = *reinterpret_cast<const Vec<float, 2>*>(p_x_1 + (col));
            Vec<float, 2> pow_1_w_0;
            #pragma unroll
            for (int lane = 0; lane < 2; ++lane) {
              const float x_1 = load_as<float>(x_1_v_0.v[lane]);
              const float pow_1 = hlo_power(x_1, 2.5f);
              pow_1_w_0.v[lane] = store_as<float>(pow_1);
            }
            *reinterpret_cast<Vec<float, 2>*>(p_pow_1 + (col)) = pow_1_w_0;
          }
        }
      }
    }
  }
  ASTITCH_GLOBAL_BARRIER(barrier);  // Global: %pow.1 before level 1
  {  // loop 1: outer 1 / 1 threads, row 1 / 1 threads x 1, col 2x128 / 512 threads x 1 x 4; 1 tasks; element-wise: flat tiles
    const int thread = threadIdx.x;
    const int tx = threadIdx.x;
    const int ty = 0;
    const int to = 0;
    const int first = blockIdx.x;
    {
      const int task = first;
      {
        const int k = 0;
        {
          const int l = 0;
          const int col = l * 2048 + tx * 4;
          if (col < 256) {
            const int col_0 = ((col) >> 7);
            const float pow_1__1 = load_as<float>(p_pow_1[col_0]);
            const Vec<float, 4> y_1_v_0 = *reinterpret_cast<const Vec<float, 4>*>(p_y_1 + (col));
            Vec<float, 4> add_7_w_0;
            #pragma unroll
            for (int lane = 0; lane < 4; ++lane) {
              const float y_1 = load_as<float>(y_1_v_0.v[lane]);
              const float add_7 = hlo_add(pow_1__1, y_1);
              add_7_w_0.v[lane] = store_as<float>(add_7);
            }
            *reinterpret_cast<Vec<float, 4>*>(p_add_7 + (col)) = add_7_w_0;
          }
        }
      }
    }
  }
}
