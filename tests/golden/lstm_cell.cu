#include "astitch.cuh"
// stitch_0: grid 4 x 256 threads, 0 B shared
//   jit(lstm_gates)/split
//   jit(lstm_gates)/neg
//   jit(lstm_gates)/exp
//   jit(lstm_gates)/add
//   jit(lstm_gates)/div
//   jit(lstm_gates)/mul
//   jit(lstm_gates)/tanh
extern "C" __global__ void __launch_bounds__(256) stitch_0(
    const float* __restrict__ p_gates_1,
    const float* __restrict__ p_c_1,
    float* __restrict__ p_add_8,
    float* __restrict__ p_mul_5) {
  assume_threads<256>();
  {  // loop 0: outer 1 / 1 threads, row 1 / 1 threads x 1, col 32x128 / 256 threads x 1 x 4; 4 tasks; element-wise: flat tiles
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
          const int col_1 = ((col) & 127);
          const int col_0 = ((col) >> 7);
          const int at_0 = col_1 + col_0 * 512 + 128;
          const Vec<float, 4> gates_1_v_0 = *reinterpret_cast<const Vec<float, 4>*>(p_gates_1 + (at_0));
          const Vec<float, 4> c_1_v_0 = *reinterpret_cast<const Vec<float, 4>*>(p_c_1 + (col));
          const int at_0__1 = col_1 + col_0 * 512;
          const Vec<float, 4> gates_1_v_0__1 = *reinterpret_cast<const Vec<float, 4>*>(p_gates_1 + (at_0__1));
          const int at_0__2 = col_1 + col_0 * 512 + 256;
          const Vec<float, 4> gates_1_v_0__2 = *reinterpret_cast<const Vec<float, 4>*>(p_gates_1 + (at_0__2));
          Vec<float, 4> add_8_w_0;
          const int at_0__3 = col_1 + col_0 * 512 + 384;
          const Vec<float, 4> gates_1_v_0__3 = *reinterpret_cast<const Vec<float, 4>*>(p_gates_1 + (at_0__3));
          Vec<float, 4> mul_5_w_0;
          #pragma unroll
          for (int lane = 0; lane < 4; ++lane) {
            const float gates_1 = load_as<float>(gates_1_v_0.v[lane]);
            const float add_5 = hlo_add(gates_1, 1.0f);
            const float neg_3 = hlo_negate(add_5);
            const float exp_3 = hlo_exp(neg_3);
            const float add_6 = hlo_add(exp_3, 1.0f);
            const float div_3 = hlo_divide(1.0f, add_6);
            const float c_1 = load_as<float>(c_1_v_0.v[lane]);
            const float mul_3 = hlo_multiply(div_3, c_1);
            const float gates_1__1 = load_as<float>(gates_1_v_0__1.v[lane]);
            const float neg_4 = hlo_negate(gates_1__1);
            const float exp_4 = hlo_exp(neg_4);
            const float add_7 = hlo_add(exp_4, 1.0f);
            const float div_4 = hlo_divide(1.0f, add_7);
            const float gates_1__2 = load_as<float>(gates_1_v_0__2.v[lane]);
            const float tanh_2 = hlo_tanh(gates_1__2);
            const float mul_4 = hlo_multiply(div_4, tanh_2);
            const float add_8 = hlo_add(mul_3, mul_4);
            add_8_w_0.v[lane] = store_as<float>(add_8);
            const float gates_1__3 = load_as<float>(gates_1_v_0__3.v[lane]);
            const float neg_5 = hlo_negate(gates_1__3);
            const float exp_5 = hlo_exp(neg_5);
            const float add_9 = hlo_add(exp_5, 1.0f);
            const float div_5 = hlo_divide(1.0f, add_9);
            const float tanh_3 = hlo_tanh(add_8);
            const float mul_5 = hlo_multiply(div_5, tanh_3);
            mul_5_w_0.v[lane] = store_as<float>(mul_5);
          }
          *reinterpret_cast<Vec<float, 4>*>(p_add_8 + (col)) = add_8_w_0;
          *reinterpret_cast<Vec<float, 4>*>(p_mul_5 + (col)) = mul_5_w_0;
        }
      }
    }
  }
}
