#include "astitch.cuh"
// stitch_0: grid 8 x 256 threads, 0 B shared
//   jit(sgd_momentum)/mul
//   jit(sgd_momentum)/add
//   jit(sgd_momentum)/sub
extern "C" __global__ void __launch_bounds__(256) stitch_0(
    const float* __restrict__ p_flat_10__1,
    const float* __restrict__ p_flat_5__1,
    const float* __restrict__ p_flat_0__1,
    const float* __restrict__ p_flat_11__1,
    const float* __restrict__ p_flat_6__1,
    const float* __restrict__ p_flat_1__1,
    const float* __restrict__ p_flat_12__1,
    const float* __restrict__ p_flat_7__1,
    const float* __restrict__ p_flat_2__1,
    const float* __restrict__ p_flat_13__1,
    const float* __restrict__ p_flat_8__1,
    const float* __restrict__ p_flat_3__1,
    const float* __restrict__ p_flat_14__1,
    const float* __restrict__ p_flat_9__1,
    const float* __restrict__ p_flat_4__1,
    float* __restrict__ p_add_11,
    float* __restrict__ p_sub_5,
    float* __restrict__ p_add_13,
    float* __restrict__ p_sub_6,
    float* __restrict__ p_add_15,
    float* __restrict__ p_sub_7,
    float* __restrict__ p_add_17,
    float* __restrict__ p_sub_8,
    float* __restrict__ p_add_19,
    float* __restrict__ p_sub_9) {
  assume_threads<256>();
  if (blockIdx.x < 4) {
    {  // loop 0: outer 1 / 1 threads, row 1 / 1 threads x 1, col 64x48 / 256 threads x 1 x 4; 3 tasks; element-wise: flat tiles
      const int thread = threadIdx.x;
      const int tx = threadIdx.x;
      const int ty = 0;
      const int to = 0;
      const int first = blockIdx.x;
      if (first < 3) {
        const int task = first;
        const int col_tile = task;
        {
          const int k = 0;
          {
            const int l = 0;
            const int col = l * 1024 + tx * 4 + col_tile * 1024;
            const Vec<float, 4> flat_10__1_v_0 = *reinterpret_cast<const Vec<float, 4>*>(p_flat_10__1 + (col));
            const Vec<float, 4> flat_5__1_v_0 = *reinterpret_cast<const Vec<float, 4>*>(p_flat_5__1 + (col));
            const Vec<float, 4> flat_0__1_v_0 = *reinterpret_cast<const Vec<float, 4>*>(p_flat_0__1 + (col));
            Vec<float, 4> add_11_w_0;
            Vec<float, 4> sub_5_w_0;
            #pragma unroll
            for (int lane = 0; lane < 4; ++lane) {
              const float flat_10__1 = load_as<float>(flat_10__1_v_0.v[lane]);
              const float mul_39 = hlo_multiply(flat_10__1, 0.9f);
              const float flat_5__1 = load_as<float>(flat_5__1_v_0.v[lane]);
              const float add_10 = hlo_add(mul_39, flat_5__1);
              const float flat_0__1 = load_as<float>(flat_0__1_v_0.v[lane]);
              const float mul_40 = hlo_multiply(flat_0__1, 1e-04f);
              const float add_11 = hlo_add(add_10, mul_40);
              add_11_w_0.v[lane] = store_as<float>(add_11);
              const float mul_49 = hlo_multiply(add_11, 0.1f);
              const float sub_5 = hlo_subtract(flat_0__1, mul_49);
              sub_5_w_0.v[lane] = store_as<float>(sub_5);
            }
            *reinterpret_cast<Vec<float, 4>*>(p_add_11 + (col)) = add_11_w_0;
            *reinterpret_cast<Vec<float, 4>*>(p_sub_5 + (col)) = sub_5_w_0;
          }
        }
      }
    }
    {  // loop 1: outer 1 / 1 threads, row 1 / 1 threads x 1, col 48 / 256 threads x 1 x 4; 1 tasks; element-wise: flat tiles
      const int thread = threadIdx.x;
      const int tx = threadIdx.x;
      const int ty = 0;
      const int to = 0;
      const int first = int(blockIdx.x) - 3;
      if (first >= 0 && first < 1) {
        const int task = first;
        {
          const int k = 0;
          {
            const int l = 0;
            const int col = l * 1024 + tx * 4;
            if (col < 48) {
              const Vec<float, 4> flat_11__1_v_0 = *reinterpret_cast<const Vec<float, 4>*>(p_flat_11__1 + (col));
              const Vec<float, 4> flat_6__1_v_0 = *reinterpret_cast<const Vec<float, 4>*>(p_flat_6__1 + (col));
              const Vec<float, 4> flat_1__1_v_0 = *reinterpret_cast<const Vec<float, 4>*>(p_flat_1__1 + (col));
              Vec<float, 4> add_13_w_0;
              Vec<float, 4> sub_6_w_0;
              #pragma unroll
              for (int lane = 0; lane < 4; ++lane) {
                const float flat_11__1 = load_as<float>(flat_11__1_v_0.v[lane]);
                const float mul_41 = hlo_multiply(flat_11__1, 0.9f);
                const float flat_6__1 = load_as<float>(flat_6__1_v_0.v[lane]);
                const float add_12 = hlo_add(mul_41, flat_6__1);
                const float flat_1__1 = load_as<float>(flat_1__1_v_0.v[lane]);
                const float mul_42 = hlo_multiply(flat_1__1, 1e-04f);
                const float add_13 = hlo_add(add_12, mul_42);
                add_13_w_0.v[lane] = store_as<float>(add_13);
                const float mul_50 = hlo_multiply(add_13, 0.1f);
                const float sub_6 = hlo_subtract(flat_1__1, mul_50);
                sub_6_w_0.v[lane] = store_as<float>(sub_6);
              }
              *reinterpret_cast<Vec<float, 4>*>(p_add_13 + (col)) = add_13_w_0;
              *reinterpret_cast<Vec<float, 4>*>(p_sub_6 + (col)) = sub_6_w_0;
            }
          }
        }
      }
    }
  } else {
    {  // loop 2: outer 1 / 1 threads, row 1 / 1 threads x 1, col 100x20 / 256 threads x 1 x 4; 2 tasks; element-wise: flat tiles
      const int thread = threadIdx.x;
      const int tx = threadIdx.x;
      const int ty = 0;
      const int to = 0;
      const int first = int(blockIdx.x) - 4;
      if (first >= 0 && first < 2) {
        const int task = first;
        const int col_tile = task;
        {
          const int k = 0;
          {
            const int l = 0;
            const int col = l * 1024 + tx * 4 + col_tile * 1024;
            if (col < 2000) {
              const Vec<float, 4> flat_12__1_v_0 = *reinterpret_cast<const Vec<float, 4>*>(p_flat_12__1 + (col));
              const Vec<float, 4> flat_7__1_v_0 = *reinterpret_cast<const Vec<float, 4>*>(p_flat_7__1 + (col));
              const Vec<float, 4> flat_2__1_v_0 = *reinterpret_cast<const Vec<float, 4>*>(p_flat_2__1 + (col));
              Vec<float, 4> add_15_w_0;
              Vec<float, 4> sub_7_w_0;
              #pragma unroll
              for (int lane = 0; lane < 4; ++lane) {
                const float flat_12__1 = load_as<float>(flat_12__1_v_0.v[lane]);
                const float mul_43 = hlo_multiply(flat_12__1, 0.9f);
                const float flat_7__1 = load_as<float>(flat_7__1_v_0.v[lane]);
                const float add_14 = hlo_add(mul_43, flat_7__1);
                const float flat_2__1 = load_as<float>(flat_2__1_v_0.v[lane]);
                const float mul_44 = hlo_multiply(flat_2__1, 1e-04f);
                const float add_15 = hlo_add(add_14, mul_44);
                add_15_w_0.v[lane] = store_as<float>(add_15);
                const float mul_51 = hlo_multiply(add_15, 0.1f);
                const float sub_7 = hlo_subtract(flat_2__1, mul_51);
                sub_7_w_0.v[lane] = store_as<float>(sub_7);
              }
              *reinterpret_cast<Vec<float, 4>*>(p_add_15 + (col)) = add_15_w_0;
              *reinterpret_cast<Vec<float, 4>*>(p_sub_7 + (col)) = sub_7_w_0;
            }
          }
        }
      }
    }
    {  // loop 3: outer 1 / 1 threads, row 1 / 1 threads x 1, col 7x13 / 256 threads x 1 x 1; 1 tasks; element-wise: flat tiles
      const int thread = threadIdx.x;
      const int tx = threadIdx.x;
      const int ty = 0;
      const int to = 0;
      const int first = int(blockIdx.x) - 6;
      if (first >= 0 && first < 1) {
        const int task = first;
        {
          const int k = 0;
          {
            const int l = 0;
            const int col = l * 256 + tx;
            if (col < 91) {
              const float flat_13__1 = load_as<float>(p_flat_13__1[col]);
              const float mul_45 = hlo_multiply(flat_13__1, 0.9f);
              const float flat_8__1 = load_as<float>(p_flat_8__1[col]);
              const float add_16 = hlo_add(mul_45, flat_8__1);
              const float flat_3__1 = load_as<float>(p_flat_3__1[col]);
              const float mul_46 = hlo_multiply(flat_3__1, 1e-04f);
              const float add_17 = hlo_add(add_16, mul_46);
              p_add_17[col] = store_as<float>(add_17);
              const float mul_52 = hlo_multiply(add_17, 0.1f);
              const float sub_8 = hlo_subtract(flat_3__1, mul_52);
              p_sub_8[col] = store_as<float>(sub_8);
            }
          }
        }
      }
    }
    {  // loop 4: outer 1 / 1 threads, row 1 / 1 threads x 1, col 1 / 256 threads x 1 x 1; 1 tasks; element-wise: flat tiles
      const int thread = threadIdx.x;
      const int tx = threadIdx.x;
      const int ty = 0;
      const int to = 0;
      const int first = int(blockIdx.x) - 7;
      if (first >= 0) {
        const float flat_14__1 = load_as<float>(p_flat_14__1[0]);
        const float mul_47 = hlo_multiply(flat_14__1, 0.9f);
        const float flat_9__1 = load_as<float>(p_flat_9__1[0]);
        const float add_18 = hlo_add(mul_47, flat_9__1);
        const float flat_4__1 = load_as<float>(p_flat_4__1[0]);
        const float mul_48 = hlo_multiply(flat_4__1, 1e-04f);
        const float add_19 = hlo_add(add_18, mul_48);
        const float mul_53 = hlo_multiply(add_19, 0.1f);
        const float sub_9 = hlo_subtract(flat_4__1, mul_53);
        {
          const int task = first;
          if (tx < 1) {
            p_add_19[0] = store_as<float>(add_19);
          }
          if (tx < 1) {
            p_sub_9[0] = store_as<float>(sub_9);
          }
        }
      }
    }
  }
}
