#include "astitch.cuh"
// stitch_0: grid 57 x 256 threads, 0 B shared
//   jit(swiglu)/jvp()/slice
//   neg
//   exp
//   add
//   div
//   mul
//   sub
//   jit(swiglu)/jvp()/mul
//   and 4 more
extern "C" __global__ void __launch_bounds__(256) stitch_0(
    const float* __restrict__ p_x_1,
    const float* __restrict__ p_dy_1,
    float* __restrict__ p_mul_13,
    float* __restrict__ p_add_any_3) {
  assume_threads<256>();
  {  // loop 0: outer 1 / 1 threads, row 1 / 1 threads x 1, col 48x400 / 256 threads x 1 x 4; 19 tasks; element-wise: flat tiles
    const int thread = threadIdx.x;
    const int tx = threadIdx.x;
    const int ty = 0;
    const int to = 0;
    const int first = blockIdx.x;
    if (first < 19) {
      const int task = first;
      const int col_tile = task;
      {
        const int k = 0;
        {
          const int l = 0;
          const int col = l * 1024 + tx * 4 + col_tile * 1024;
          if (col < 19200) {
            const int col_1 = ((col) % 400);
            const int col_0 = ((col) / 400);
            const int at_0 = col_1 + col_0 * 800;
            const Vec<float, 4> x_1_v_0 = *reinterpret_cast<const Vec<float, 4>*>(p_x_1 + (at_0));
            const int at_0__1 = col_1 + col_0 * 800 + 400;
            const Vec<float, 4> x_1_v_0__1 = *reinterpret_cast<const Vec<float, 4>*>(p_x_1 + (at_0__1));
            Vec<float, 4> mul_13_w_0;
            #pragma unroll
            for (int lane = 0; lane < 4; ++lane) {
              const float x_1 = load_as<float>(x_1_v_0.v[lane]);
              const float neg_1 = hlo_negate(x_1);
              const float exp_1 = hlo_exp(neg_1);
              const float add_1 = hlo_add(exp_1, 1.0f);
              const float div_1 = hlo_divide(1.0f, add_1);
              const float mul_3 = hlo_multiply(x_1, div_1);
              const float x_1__1 = load_as<float>(x_1_v_0__1.v[lane]);
              const float mul_13 = hlo_multiply(mul_3, x_1__1);
              mul_13_w_0.v[lane] = store_as<float>(mul_13);
            }
            *reinterpret_cast<Vec<float, 4>*>(p_mul_13 + (col)) = mul_13_w_0;
          }
        }
      }
    }
  }
  {  // loop 1: outer 1 / 1 threads, row 1 / 1 threads x 1, col 48x800 / 256 threads x 1 x 4; 38 tasks; element-wise: flat tiles
    const int thread = threadIdx.x;
    const int tx = threadIdx.x;
    const int ty = 0;
    const int to = 0;
    const int first = int(blockIdx.x) - 19;
    if (first >= 0) {
      const int task = first;
      const int col_tile = task;
      {
        const int k = 0;
        {
          const int l = 0;
          const int col = l * 1024 + tx * 4 + col_tile * 1024;
          if (col < 38400) {
            const int col_1__1 = ((col) % 800);
            float pad_2_lanes_0[4];
            if (col_1__1 - 400 >= 0) {
              const Vec<float, 4> x_1_v_0__2 = *reinterpret_cast<const Vec<float, 4>*>(p_x_1 + (col - 400));
              const int col_0__1 = ((col) / 800);
              const int at_0__2 = col_1__1 + col_0__1 * 400 - 400;
              const Vec<float, 4> dy_1_v_0 = *reinterpret_cast<const Vec<float, 4>*>(p_dy_1 + (at_0__2));
              #pragma unroll
              for (int lane = 0; lane < 4; ++lane) {
                const float x_1__2 = load_as<float>(x_1_v_0__2.v[lane]);
                const float neg_1__1 = hlo_negate(x_1__2);
                const float exp_1__1 = hlo_exp(neg_1__1);
                const float add_1__1 = hlo_add(exp_1__1, 1.0f);
                const float div_1__1 = hlo_divide(1.0f, add_1__1);
                const float mul_3__1 = hlo_multiply(x_1__2, div_1__1);
                const float dy_1 = load_as<float>(dy_1_v_0.v[lane]);
                const float mul_14 = hlo_multiply(mul_3__1, dy_1);
                pad_2_lanes_0[lane] = mul_14;
              }
            } else {
              #pragma unroll
              for (int lane = 0; lane < 4; ++lane) {
                pad_2_lanes_0[lane] = 0.0f;
              }
            }
            float pad_3_lanes_0[4];
            if (col_1__1 < 400) {
              const int col_0__2 = ((col) / 800);
              const int at_0__3 = col_1__1 + col_0__2 * 400;
              const Vec<float, 4> dy_1_v_0__1 = *reinterpret_cast<const Vec<float, 4>*>(p_dy_1 + (at_0__3));
              const Vec<float, 4> x_1_v_0__3 = *reinterpret_cast<const Vec<float, 4>*>(p_x_1 + (col + 400));
              const Vec<float, 4> x_1_v_0__4 = *reinterpret_cast<const Vec<float, 4>*>(p_x_1 + (col));
              #pragma unroll
              for (int lane = 0; lane < 4; ++lane) {
                const float dy_1__1 = load_as<float>(dy_1_v_0__1.v[lane]);
                const float x_1__3 = load_as<float>(x_1_v_0__3.v[lane]);
                const float mul_15 = hlo_multiply(dy_1__1, x_1__3);
                const float x_1__4 = load_as<float>(x_1_v_0__4.v[lane]);
                const float neg_1__2 = hlo_negate(x_1__4);
                const float exp_1__2 = hlo_exp(neg_1__2);
                const float add_1__2 = hlo_add(exp_1__2, 1.0f);
                const float div_1__2 = hlo_divide(1.0f, add_1__2);
                const float mul_11 = hlo_multiply(mul_15, div_1__2);
                const float mul_10 = hlo_multiply(x_1__4, mul_15);
                const float sub_1 = hlo_subtract(1.0f, div_1__2);
                const float mul_2 = hlo_multiply(div_1__2, sub_1);
                const float mul_12 = hlo_multiply(mul_10, mul_2);
                const float add_any_1 = hlo_add(mul_11, mul_12);
                pad_3_lanes_0[lane] = add_any_1;
              }
            } else {
              #pragma unroll
              for (int lane = 0; lane < 4; ++lane) {
                pad_3_lanes_0[lane] = 0.0f;
              }
            }
            Vec<float, 4> add_any_3_w_0;
            #pragma unroll
            for (int lane = 0; lane < 4; ++lane) {
              const float add_any_3 = hlo_add(pad_2_lanes_0[lane], pad_3_lanes_0[lane]);
              add_any_3_w_0.v[lane] = store_as<float>(add_any_3);
            }
            *reinterpret_cast<Vec<float, 4>*>(p_add_any_3 + (col)) = add_any_3_w_0;
          }
        }
      }
    }
  }
}
