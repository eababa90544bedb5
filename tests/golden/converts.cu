#include "astitch.cuh"
// stitch_0: grid 4 x 256 threads, 0 B shared
//   jit(converts)/convert_element_type
//   jit(converts)/reduce_precision
extern "C" __global__ void __launch_bounds__(256) stitch_0(
    const float* __restrict__ p_x_1,
    const float* __restrict__ p_positive_1,
    const int* __restrict__ p_n_1,
    const bool* __restrict__ p_flag_1,
    int* __restrict__ p_convert_element_type_19,
    signed char* __restrict__ p_convert_element_type_20,
    bf16* __restrict__ p_convert_element_type_22,
    f16* __restrict__ p_convert_element_type_23,
    bool* __restrict__ p_convert_element_type_24,
    bf16* __restrict__ p_convert_element_type_35,
    float* __restrict__ p_reduce_precision_1,
    unsigned char* __restrict__ p_convert_element_type_21,
    signed char* __restrict__ p_convert_element_type_25,
    unsigned char* __restrict__ p_convert_element_type_26,
    float* __restrict__ p_convert_element_type_27,
    f16* __restrict__ p_convert_element_type_28,
    bf16* __restrict__ p_convert_element_type_29,
    float* __restrict__ p_convert_element_type_33,
    float* __restrict__ p_convert_element_type_30,
    unsigned char* __restrict__ p_convert_element_type_31) {
  assume_threads<256>();
  if (blockIdx.x < 2) {
    {  // loop 0: outer 1 / 1 threads, row 1 / 1 threads x 1, col 300 / 256 threads x 1 x 4; 1 tasks; element-wise: flat tiles
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
            if (col < 300) {
              const Vec<float, 4> x_1_v_0 = *reinterpret_cast<const Vec<float, 4>*>(p_x_1 + (col));
              Vec<int, 4> convert_element_type_19_w_0;
              Vec<signed char, 4> convert_element_type_20_w_0;
              Vec<bf16, 4> convert_element_type_22_w_0;
              Vec<f16, 4> convert_element_type_23_w_0;
              Vec<bool, 4> convert_element_type_24_w_0;
              Vec<bf16, 4> convert_element_type_35_w_0;
              Vec<float, 4> reduce_precision_1_w_0;
              #pragma unroll
              for (int lane = 0; lane < 4; ++lane) {
                const float x_1 = load_as<float>(x_1_v_0.v[lane]);
                const int convert_element_type_19 = hlo_convert<int, float>(x_1);
                convert_element_type_19_w_0.v[lane] = store_as<int>(convert_element_type_19);
                const signed char convert_element_type_20 = hlo_convert<signed char, float>(x_1);
                convert_element_type_20_w_0.v[lane] = store_as<signed char>(convert_element_type_20);
                const float convert_element_type_22 = hlo_convert<bf16, float>(x_1);
                convert_element_type_22_w_0.v[lane] = store_exact<bf16>(convert_element_type_22);
                const float convert_element_type_23 = hlo_convert<f16, float>(x_1);
                convert_element_type_23_w_0.v[lane] = store_as<f16>(convert_element_type_23);
                const bool convert_element_type_24 = hlo_compare_ne(x_1, 0.0f);
                convert_element_type_24_w_0.v[lane] = store_as<bool>(convert_element_type_24);
                const float convert_element_type_35 = hlo_convert<bf16, f16>(convert_element_type_23);
                convert_element_type_35_w_0.v[lane] = store_exact<bf16>(convert_element_type_35);
                const float reduce_precision_1 = hlo_reduce_precision<5, 7>(x_1);
                reduce_precision_1_w_0.v[lane] = store_as<float>(reduce_precision_1);
              }
              *reinterpret_cast<Vec<int, 4>*>(p_convert_element_type_19 + (col)) = convert_element_type_19_w_0;
              *reinterpret_cast<Vec<signed char, 4>*>(p_convert_element_type_20 + (col)) = convert_element_type_20_w_0;
              *reinterpret_cast<Vec<bf16, 4>*>(p_convert_element_type_22 + (col)) = convert_element_type_22_w_0;
              *reinterpret_cast<Vec<f16, 4>*>(p_convert_element_type_23 + (col)) = convert_element_type_23_w_0;
              *reinterpret_cast<Vec<bool, 4>*>(p_convert_element_type_24 + (col)) = convert_element_type_24_w_0;
              *reinterpret_cast<Vec<bf16, 4>*>(p_convert_element_type_35 + (col)) = convert_element_type_35_w_0;
              *reinterpret_cast<Vec<float, 4>*>(p_reduce_precision_1 + (col)) = reduce_precision_1_w_0;
            }
          }
        }
      }
    }
    {  // loop 1: outer 1 / 1 threads, row 1 / 1 threads x 1, col 300 / 256 threads x 1 x 4; 1 tasks; element-wise: flat tiles
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
            const int col = l * 1024 + tx * 4;
            if (col < 300) {
              const Vec<float, 4> positive_1_v_0 = *reinterpret_cast<const Vec<float, 4>*>(p_positive_1 + (col));
              Vec<unsigned char, 4> convert_element_type_21_w_0;
              #pragma unroll
              for (int lane = 0; lane < 4; ++lane) {
                const float positive_1 = load_as<float>(positive_1_v_0.v[lane]);
                const unsigned char convert_element_type_21 = hlo_convert<unsigned char, float>(positive_1);
                convert_element_type_21_w_0.v[lane] = store_as<unsigned char>(convert_element_type_21);
              }
              *reinterpret_cast<Vec<unsigned char, 4>*>(p_convert_element_type_21 + (col)) = convert_element_type_21_w_0;
            }
          }
        }
      }
    }
  } else {
    {  // loop 2: outer 1 / 1 threads, row 1 / 1 threads x 1, col 300 / 256 threads x 1 x 4; 1 tasks; element-wise: flat tiles
      const int thread = threadIdx.x;
      const int tx = threadIdx.x;
      const int ty = 0;
      const int to = 0;
      const int first = int(blockIdx.x) - 2;
      if (first >= 0 && first < 1) {
        const int task = first;
        {
          const int k = 0;
          {
            const int l = 0;
            const int col = l * 1024 + tx * 4;
            if (col < 300) {
              const Vec<int, 4> n_1_v_0 = *reinterpret_cast<const Vec<int, 4>*>(p_n_1 + (col));
              Vec<signed char, 4> convert_element_type_25_w_0;
              Vec<unsigned char, 4> convert_element_type_26_w_0;
              Vec<float, 4> convert_element_type_27_w_0;
              Vec<f16, 4> convert_element_type_28_w_0;
              Vec<bf16, 4> convert_element_type_29_w_0;
              Vec<float, 4> convert_element_type_33_w_0;
              #pragma unroll
              for (int lane = 0; lane < 4; ++lane) {
                const int n_1 = load_as<int>(n_1_v_0.v[lane]);
                const signed char convert_element_type_25 = hlo_convert<signed char, int>(n_1);
                convert_element_type_25_w_0.v[lane] = store_as<signed char>(convert_element_type_25);
                const unsigned char convert_element_type_26 = hlo_convert<unsigned char, int>(n_1);
                convert_element_type_26_w_0.v[lane] = store_as<unsigned char>(convert_element_type_26);
                const float convert_element_type_27 = hlo_convert<float, int>(n_1);
                convert_element_type_27_w_0.v[lane] = store_as<float>(convert_element_type_27);
                const float convert_element_type_28 = hlo_convert<f16, int>(n_1);
                convert_element_type_28_w_0.v[lane] = store_as<f16>(convert_element_type_28);
                const float convert_element_type_29 = hlo_convert<bf16, int>(n_1);
                convert_element_type_29_w_0.v[lane] = store_exact<bf16>(convert_element_type_29);
                const unsigned int convert_element_type_32 = hlo_convert<unsigned int, int>(n_1);
                const float convert_element_type_33 = hlo_convert<float, unsigned int>(convert_element_type_32);
                convert_element_type_33_w_0.v[lane] = store_as<float>(convert_element_type_33);
              }
              *reinterpret_cast<Vec<signed char, 4>*>(p_convert_element_type_25 + (col)) = convert_element_type_25_w_0;
              *reinterpret_cast<Vec<unsigned char, 4>*>(p_convert_element_type_26 + (col)) = convert_element_type_26_w_0;
              *reinterpret_cast<Vec<float, 4>*>(p_convert_element_type_27 + (col)) = convert_element_type_27_w_0;
              *reinterpret_cast<Vec<f16, 4>*>(p_convert_element_type_28 + (col)) = convert_element_type_28_w_0;
              *reinterpret_cast<Vec<bf16, 4>*>(p_convert_element_type_29 + (col)) = convert_element_type_29_w_0;
              *reinterpret_cast<Vec<float, 4>*>(p_convert_element_type_33 + (col)) = convert_element_type_33_w_0;
            }
          }
        }
      }
    }
    {  // loop 3: outer 1 / 1 threads, row 1 / 1 threads x 1, col 300 / 256 threads x 1 x 4; 1 tasks; element-wise: flat tiles
      const int thread = threadIdx.x;
      const int tx = threadIdx.x;
      const int ty = 0;
      const int to = 0;
      const int first = int(blockIdx.x) - 3;
      if (first >= 0) {
        const int task = first;
        {
          const int k = 0;
          {
            const int l = 0;
            const int col = l * 1024 + tx * 4;
            if (col < 300) {
              const Vec<bool, 4> flag_1_v_0 = *reinterpret_cast<const Vec<bool, 4>*>(p_flag_1 + (col));
              Vec<float, 4> convert_element_type_30_w_0;
              Vec<unsigned char, 4> convert_element_type_31_w_0;
              #pragma unroll
              for (int lane = 0; lane < 4; ++lane) {
                const bool flag_1 = load_as<bool>(flag_1_v_0.v[lane]);
                const float convert_element_type_30 = hlo_convert<float, bool>(flag_1);
                convert_element_type_30_w_0.v[lane] = store_as<float>(convert_element_type_30);
                const unsigned char convert_element_type_31 = hlo_convert<unsigned char, bool>(flag_1);
                convert_element_type_31_w_0.v[lane] = store_as<unsigned char>(convert_element_type_31);
              }
              *reinterpret_cast<Vec<float, 4>*>(p_convert_element_type_30 + (col)) = convert_element_type_30_w_0;
              *reinterpret_cast<Vec<unsigned char, 4>*>(p_convert_element_type_31 + (col)) = convert_element_type_31_w_0;
            }
          }
        }
      }
    }
  }
}
