#include "astitch.cuh"
// stitch_0: grid 7 x 256 threads, 384 B shared
//   jit(pooling)/integer_pow
//   jit(pooling)/mul
//   jit(pooling)/add
//   jit(pooling)/tanh
//   jit(pooling)/reduce_window_max
//   jit(pooling)/reduce_window_sum
//   jit(pooling)/div
//   jit(pooling)/reduce_window
struct Reduce0 {
  static constexpr bool commutative = true;
  static constexpr Joint joint = JOINT_NONE;
  struct State { float f0; };
  static __device__ __forceinline__ State identity() { return State{0.0f}; }
  static __device__ __forceinline__ State combine(const State a, const State b) {
    const float v2 = hlo_add(a.f0, b.f0);
    return State{v2};
  }
  static __device__ __forceinline__ State take(const State s, int lane) {
    return State{value_of_lane(s.f0, lane)};
  }
  static __device__ __forceinline__ State shuffle(const State s, int mask) {
    return State{shuffle_value(s.f0, mask)};
  }
};
extern "C" __global__ void __launch_bounds__(256) stitch_0(
    const float* __restrict__ p_x_1,
    const bf16* __restrict__ p_y_1,
    const float* __restrict__ p_z_1,
    float* __restrict__ p_reduce_window_max_7_maximum_9,
    float* __restrict__ p_div_2,
    bf16* __restrict__ p_reduce_window_5,
    float* __restrict__ p_div_3_divide_0,
    float* __restrict__ p_reduce_window_sum_31_add_6) {
  assume_threads<256>();
  ASTITCH_SHARED_ARENA(384);
  ASTITCH_SHARED(Reduce0::State, exchange_0_0, 0, 96);
  if (blockIdx.x < 2) {
    {  // loop 0: outer 1 / 1 threads, row 1 / 1 threads x 1, col 2x7x6x8 / 256 threads x 1 x 4; 1 tasks; element-wise: flat tiles
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
            if (col < 672) {
              const int col_1 = ((((col) / 48)) % 7);
              const int col_2 = ((((col) >> 3)) % 6);
              float reduce_window_max_7_pad_lanes_0[4];
              if (col_1 * 2 - 1 >= 0 && col_2 * 2 - 1 >= 0) {
                const int col_3 = ((col) & 7);
                const int col_0 = ((col) / 336);
                const int at_0 = col_3 + col_2 * 16 + col_1 * 176 + col_0 * 1144 - 96;
                const Vec<float, 4> x_1_v_0 = *reinterpret_cast<const Vec<float, 4>*>(p_x_1 + (at_0));
                #pragma unroll
                for (int lane = 0; lane < 4; ++lane) {
                  const float x_1 = load_as<float>(x_1_v_0.v[lane]);
                  const float integer_pow_2 = hlo_multiply(x_1, x_1);
                  const float integer_pow_3 = hlo_multiply(integer_pow_2, x_1);
                  const float mul_10 = hlo_multiply(integer_pow_3, 0.044715f);
                  const float add_4 = hlo_add(x_1, mul_10);
                  const float mul_11 = hlo_multiply(add_4, 0.7978846f);
                  const float tanh_1 = hlo_tanh(mul_11);
                  const float add_5 = hlo_add(tanh_1, 1.0f);
                  const float mul_12 = hlo_multiply(add_5, 0.5f);
                  const float mul_13 = hlo_multiply(x_1, mul_12);
                  reduce_window_max_7_pad_lanes_0[lane] = mul_13;
                }
              } else {
                #pragma unroll
                for (int lane = 0; lane < 4; ++lane) {
                  reduce_window_max_7_pad_lanes_0[lane] = same_bits<float>(0xff800000u);
                }
              }
              float reduce_window_max_7_pad_lanes_0__1[4];
              if (col_1 * 2 - 1 >= 0) {
                const int col_3__1 = ((col) & 7);
                const int col_0__1 = ((col) / 336);
                const int at_0__1 = col_3__1 + col_2 * 16 + col_1 * 176 + col_0__1 * 1144 - 88;
                const Vec<float, 4> x_1_v_0__1 = *reinterpret_cast<const Vec<float, 4>*>(p_x_1 + (at_0__1));
                #pragma unroll
                for (int lane = 0; lane < 4; ++lane) {
                  const float x_1__1 = load_as<float>(x_1_v_0__1.v[lane]);
                  const float integer_pow_2__1 = hlo_multiply(x_1__1, x_1__1);
                  const float integer_pow_3__1 = hlo_multiply(integer_pow_2__1, x_1__1);
                  const float mul_10__1 = hlo_multiply(integer_pow_3__1, 0.044715f);
                  const float add_4__1 = hlo_add(x_1__1, mul_10__1);
                  const float mul_11__1 = hlo_multiply(add_4__1, 0.7978846f);
                  const float tanh_1__1 = hlo_tanh(mul_11__1);
                  const float add_5__1 = hlo_add(tanh_1__1, 1.0f);
                  const float mul_12__1 = hlo_multiply(add_5__1, 0.5f);
                  const float mul_13__1 = hlo_multiply(x_1__1, mul_12__1);
                  reduce_window_max_7_pad_lanes_0__1[lane] = mul_13__1;
                }
              } else {
                #pragma unroll
                for (int lane = 0; lane < 4; ++lane) {
                  reduce_window_max_7_pad_lanes_0__1[lane] = same_bits<float>(0xff800000u);
                }
              }
              float reduce_window_max_7_pad_lanes_0__2[4];
              if (col_1 * 2 - 1 >= 0 && col_2 * 2 + 1 < 11) {
                const int col_3__2 = ((col) & 7);
                const int col_0__2 = ((col) / 336);
                const int at_0__2 = col_3__2 + col_2 * 16 + col_1 * 176 + col_0__2 * 1144 - 80;
                const Vec<float, 4> x_1_v_0__2 = *reinterpret_cast<const Vec<float, 4>*>(p_x_1 + (at_0__2));
                #pragma unroll
                for (int lane = 0; lane < 4; ++lane) {
                  const float x_1__2 = load_as<float>(x_1_v_0__2.v[lane]);
                  const float integer_pow_2__2 = hlo_multiply(x_1__2, x_1__2);
                  const float integer_pow_3__2 = hlo_multiply(integer_pow_2__2, x_1__2);
                  const float mul_10__2 = hlo_multiply(integer_pow_3__2, 0.044715f);
                  const float add_4__2 = hlo_add(x_1__2, mul_10__2);
                  const float mul_11__2 = hlo_multiply(add_4__2, 0.7978846f);
                  const float tanh_1__2 = hlo_tanh(mul_11__2);
                  const float add_5__2 = hlo_add(tanh_1__2, 1.0f);
                  const float mul_12__2 = hlo_multiply(add_5__2, 0.5f);
                  const float mul_13__2 = hlo_multiply(x_1__2, mul_12__2);
                  reduce_window_max_7_pad_lanes_0__2[lane] = mul_13__2;
                }
              } else {
                #pragma unroll
                for (int lane = 0; lane < 4; ++lane) {
                  reduce_window_max_7_pad_lanes_0__2[lane] = same_bits<float>(0xff800000u);
                }
              }
              float reduce_window_max_7_pad_lanes_0__3[4];
              if (col_2 * 2 - 1 >= 0) {
                const int col_3__3 = ((col) & 7);
                const int col_0__3 = ((col) / 336);
                const int at_0__3 = col_3__3 + col_2 * 16 + col_1 * 176 + col_0__3 * 1144 - 8;
                const Vec<float, 4> x_1_v_0__3 = *reinterpret_cast<const Vec<float, 4>*>(p_x_1 + (at_0__3));
                #pragma unroll
                for (int lane = 0; lane < 4; ++lane) {
                  const float x_1__3 = load_as<float>(x_1_v_0__3.v[lane]);
                  const float integer_pow_2__3 = hlo_multiply(x_1__3, x_1__3);
                  const float integer_pow_3__3 = hlo_multiply(integer_pow_2__3, x_1__3);
                  const float mul_10__3 = hlo_multiply(integer_pow_3__3, 0.044715f);
                  const float add_4__3 = hlo_add(x_1__3, mul_10__3);
                  const float mul_11__3 = hlo_multiply(add_4__3, 0.7978846f);
                  const float tanh_1__3 = hlo_tanh(mul_11__3);
                  const float add_5__3 = hlo_add(tanh_1__3, 1.0f);
                  const float mul_12__3 = hlo_multiply(add_5__3, 0.5f);
                  const float mul_13__3 = hlo_multiply(x_1__3, mul_12__3);
                  reduce_window_max_7_pad_lanes_0__3[lane] = mul_13__3;
                }
              } else {
                #pragma unroll
                for (int lane = 0; lane < 4; ++lane) {
                  reduce_window_max_7_pad_lanes_0__3[lane] = same_bits<float>(0xff800000u);
                }
              }
              const int col_3__4 = ((col) & 7);
              const int col_0__4 = ((col) / 336);
              const int at_0__4 = col_3__4 + col_2 * 16 + col_1 * 176 + col_0__4 * 1144;
              const Vec<float, 4> x_1_v_0__4 = *reinterpret_cast<const Vec<float, 4>*>(p_x_1 + (at_0__4));
              float reduce_window_max_7_pad_lanes_0__4[4];
              if (col_2 * 2 + 1 < 11) {
                const int at_0__5 = col_3__4 + col_2 * 16 + col_1 * 176 + col_0__4 * 1144 + 8;
                const Vec<float, 4> x_1_v_0__5 = *reinterpret_cast<const Vec<float, 4>*>(p_x_1 + (at_0__5));
                #pragma unroll
                for (int lane = 0; lane < 4; ++lane) {
                  const float x_1__5 = load_as<float>(x_1_v_0__5.v[lane]);
                  const float integer_pow_2__5 = hlo_multiply(x_1__5, x_1__5);
                  const float integer_pow_3__5 = hlo_multiply(integer_pow_2__5, x_1__5);
                  const float mul_10__5 = hlo_multiply(integer_pow_3__5, 0.044715f);
                  const float add_4__5 = hlo_add(x_1__5, mul_10__5);
                  const float mul_11__5 = hlo_multiply(add_4__5, 0.7978846f);
                  const float tanh_1__5 = hlo_tanh(mul_11__5);
                  const float add_5__5 = hlo_add(tanh_1__5, 1.0f);
                  const float mul_12__5 = hlo_multiply(add_5__5, 0.5f);
                  const float mul_13__5 = hlo_multiply(x_1__5, mul_12__5);
                  reduce_window_max_7_pad_lanes_0__4[lane] = mul_13__5;
                }
              } else {
                #pragma unroll
                for (int lane = 0; lane < 4; ++lane) {
                  reduce_window_max_7_pad_lanes_0__4[lane] = same_bits<float>(0xff800000u);
                }
              }
              float reduce_window_max_7_pad_lanes_0__5[4];
              if (col_1 * 2 + 1 < 13 && col_2 * 2 - 1 >= 0) {
                const int at_0__6 = col_3__4 + col_2 * 16 + col_1 * 176 + col_0__4 * 1144 + 80;
                const Vec<float, 4> x_1_v_0__6 = *reinterpret_cast<const Vec<float, 4>*>(p_x_1 + (at_0__6));
                #pragma unroll
                for (int lane = 0; lane < 4; ++lane) {
                  const float x_1__6 = load_as<float>(x_1_v_0__6.v[lane]);
                  const float integer_pow_2__6 = hlo_multiply(x_1__6, x_1__6);
                  const float integer_pow_3__6 = hlo_multiply(integer_pow_2__6, x_1__6);
                  const float mul_10__6 = hlo_multiply(integer_pow_3__6, 0.044715f);
                  const float add_4__6 = hlo_add(x_1__6, mul_10__6);
                  const float mul_11__6 = hlo_multiply(add_4__6, 0.7978846f);
                  const float tanh_1__6 = hlo_tanh(mul_11__6);
                  const float add_5__6 = hlo_add(tanh_1__6, 1.0f);
                  const float mul_12__6 = hlo_multiply(add_5__6, 0.5f);
                  const float mul_13__6 = hlo_multiply(x_1__6, mul_12__6);
                  reduce_window_max_7_pad_lanes_0__5[lane] = mul_13__6;
                }
              } else {
                #pragma unroll
                for (int lane = 0; lane < 4; ++lane) {
                  reduce_window_max_7_pad_lanes_0__5[lane] = same_bits<float>(0xff800000u);
                }
              }
              float reduce_window_max_7_pad_lanes_0__6[4];
              if (col_1 * 2 + 1 < 13) {
                const int at_0__7 = col_3__4 + col_2 * 16 + col_1 * 176 + col_0__4 * 1144 + 88;
                const Vec<float, 4> x_1_v_0__7 = *reinterpret_cast<const Vec<float, 4>*>(p_x_1 + (at_0__7));
                #pragma unroll
                for (int lane = 0; lane < 4; ++lane) {
                  const float x_1__7 = load_as<float>(x_1_v_0__7.v[lane]);
                  const float integer_pow_2__7 = hlo_multiply(x_1__7, x_1__7);
                  const float integer_pow_3__7 = hlo_multiply(integer_pow_2__7, x_1__7);
                  const float mul_10__7 = hlo_multiply(integer_pow_3__7, 0.044715f);
                  const float add_4__7 = hlo_add(x_1__7, mul_10__7);
                  const float mul_11__7 = hlo_multiply(add_4__7, 0.7978846f);
                  const float tanh_1__7 = hlo_tanh(mul_11__7);
                  const float add_5__7 = hlo_add(tanh_1__7, 1.0f);
                  const float mul_12__7 = hlo_multiply(add_5__7, 0.5f);
                  const float mul_13__7 = hlo_multiply(x_1__7, mul_12__7);
                  reduce_window_max_7_pad_lanes_0__6[lane] = mul_13__7;
                }
              } else {
                #pragma unroll
                for (int lane = 0; lane < 4; ++lane) {
                  reduce_window_max_7_pad_lanes_0__6[lane] = same_bits<float>(0xff800000u);
                }
              }
              float reduce_window_max_7_pad_lanes_0__7[4];
              if (col_1 * 2 + 1 < 13 && col_2 * 2 + 1 < 11) {
                const int at_0__8 = col_3__4 + col_2 * 16 + col_1 * 176 + col_0__4 * 1144 + 96;
                const Vec<float, 4> x_1_v_0__8 = *reinterpret_cast<const Vec<float, 4>*>(p_x_1 + (at_0__8));
                #pragma unroll
                for (int lane = 0; lane < 4; ++lane) {
                  const float x_1__8 = load_as<float>(x_1_v_0__8.v[lane]);
                  const float integer_pow_2__8 = hlo_multiply(x_1__8, x_1__8);
                  const float integer_pow_3__8 = hlo_multiply(integer_pow_2__8, x_1__8);
                  const float mul_10__8 = hlo_multiply(integer_pow_3__8, 0.044715f);
                  const float add_4__8 = hlo_add(x_1__8, mul_10__8);
                  const float mul_11__8 = hlo_multiply(add_4__8, 0.7978846f);
                  const float tanh_1__8 = hlo_tanh(mul_11__8);
                  const float add_5__8 = hlo_add(tanh_1__8, 1.0f);
                  const float mul_12__8 = hlo_multiply(add_5__8, 0.5f);
                  const float mul_13__8 = hlo_multiply(x_1__8, mul_12__8);
                  reduce_window_max_7_pad_lanes_0__7[lane] = mul_13__8;
                }
              } else {
                #pragma unroll
                for (int lane = 0; lane < 4; ++lane) {
                  reduce_window_max_7_pad_lanes_0__7[lane] = same_bits<float>(0xff800000u);
                }
              }
              Vec<float, 4> reduce_window_max_7_maximum_9_w_0;
              #pragma unroll
              for (int lane = 0; lane < 4; ++lane) {
                const float reduce_window_max_7_maximum_2 = hlo_maximum(reduce_window_max_7_pad_lanes_0[lane], reduce_window_max_7_pad_lanes_0__1[lane]);
                const float reduce_window_max_7_maximum_3 = hlo_maximum(reduce_window_max_7_maximum_2, reduce_window_max_7_pad_lanes_0__2[lane]);
                const float reduce_window_max_7_maximum_4 = hlo_maximum(reduce_window_max_7_maximum_3, reduce_window_max_7_pad_lanes_0__3[lane]);
                const float x_1__4 = load_as<float>(x_1_v_0__4.v[lane]);
                const float integer_pow_2__4 = hlo_multiply(x_1__4, x_1__4);
                const float integer_pow_3__4 = hlo_multiply(integer_pow_2__4, x_1__4);
                const float mul_10__4 = hlo_multiply(integer_pow_3__4, 0.044715f);
                const float add_4__4 = hlo_add(x_1__4, mul_10__4);
                const float mul_11__4 = hlo_multiply(add_4__4, 0.7978846f);
                const float tanh_1__4 = hlo_tanh(mul_11__4);
                const float add_5__4 = hlo_add(tanh_1__4, 1.0f);
                const float mul_12__4 = hlo_multiply(add_5__4, 0.5f);
                const float mul_13__4 = hlo_multiply(x_1__4, mul_12__4);
                const float reduce_window_max_7_maximum_5 = hlo_maximum(reduce_window_max_7_maximum_4, mul_13__4);
                const float reduce_window_max_7_maximum_6 = hlo_maximum(reduce_window_max_7_maximum_5, reduce_window_max_7_pad_lanes_0__4[lane]);
                const float reduce_window_max_7_maximum_7 = hlo_maximum(reduce_window_max_7_maximum_6, reduce_window_max_7_pad_lanes_0__5[lane]);
                const float reduce_window_max_7_maximum_8 = hlo_maximum(reduce_window_max_7_maximum_7, reduce_window_max_7_pad_lanes_0__6[lane]);
                const float reduce_window_max_7_maximum_9 = hlo_maximum(reduce_window_max_7_maximum_8, reduce_window_max_7_pad_lanes_0__7[lane]);
                reduce_window_max_7_maximum_9_w_0.v[lane] = store_as<float>(reduce_window_max_7_maximum_9);
              }
              *reinterpret_cast<Vec<float, 4>*>(p_reduce_window_max_7_maximum_9 + (col)) = reduce_window_max_7_maximum_9_w_0;
            }
          }
        }
      }
    }
    {  // loop 1: outer 1 / 1 threads, row 1 / 1 threads x 1, col 2x7x6x8 / 256 threads x 1 x 4; 1 tasks; element-wise: flat tiles
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
            if (col < 672) {
              const int col_1__1 = ((((col) / 48)) % 7);
              const int col_2__1 = ((((col) >> 3)) % 6);
              float reduce_window_sum_29_pad_lanes_0[4];
              if (col_1__1 * 2 - 1 >= 0 && col_2__1 * 2 - 1 >= 0) {
                const int col_3__5 = ((col) & 7);
                const int col_0__5 = ((col) / 336);
                const int at_0__9 = col_3__5 + col_2__1 * 16 + col_1__1 * 176 + col_0__5 * 1144 - 96;
                const Vec<float, 4> x_1_v_0__9 = *reinterpret_cast<const Vec<float, 4>*>(p_x_1 + (at_0__9));
                #pragma unroll
                for (int lane = 0; lane < 4; ++lane) {
                  const float x_1__9 = load_as<float>(x_1_v_0__9.v[lane]);
                  reduce_window_sum_29_pad_lanes_0[lane] = x_1__9;
                }
              } else {
                #pragma unroll
                for (int lane = 0; lane < 4; ++lane) {
                  reduce_window_sum_29_pad_lanes_0[lane] = 0.0f;
                }
              }
              float reduce_window_sum_29_pad_lanes_0__1[4];
              if (col_1__1 * 2 - 1 >= 0) {
                const int col_3__6 = ((col) & 7);
                const int col_0__6 = ((col) / 336);
                const int at_0__10 = col_3__6 + col_2__1 * 16 + col_1__1 * 176 + col_0__6 * 1144 - 88;
                const Vec<float, 4> x_1_v_0__10 = *reinterpret_cast<const Vec<float, 4>*>(p_x_1 + (at_0__10));
                #pragma unroll
                for (int lane = 0; lane < 4; ++lane) {
                  const float x_1__10 = load_as<float>(x_1_v_0__10.v[lane]);
                  reduce_window_sum_29_pad_lanes_0__1[lane] = x_1__10;
                }
              } else {
                #pragma unroll
                for (int lane = 0; lane < 4; ++lane) {
                  reduce_window_sum_29_pad_lanes_0__1[lane] = 0.0f;
                }
              }
              float reduce_window_sum_29_pad_lanes_0__2[4];
              if (col_1__1 * 2 - 1 >= 0 && col_2__1 * 2 + 1 < 11) {
                const int col_3__7 = ((col) & 7);
                const int col_0__7 = ((col) / 336);
                const int at_0__11 = col_3__7 + col_2__1 * 16 + col_1__1 * 176 + col_0__7 * 1144 - 80;
                const Vec<float, 4> x_1_v_0__11 = *reinterpret_cast<const Vec<float, 4>*>(p_x_1 + (at_0__11));
                #pragma unroll
                for (int lane = 0; lane < 4; ++lane) {
                  const float x_1__11 = load_as<float>(x_1_v_0__11.v[lane]);
                  reduce_window_sum_29_pad_lanes_0__2[lane] = x_1__11;
                }
              } else {
                #pragma unroll
                for (int lane = 0; lane < 4; ++lane) {
                  reduce_window_sum_29_pad_lanes_0__2[lane] = 0.0f;
                }
              }
              float reduce_window_sum_29_pad_lanes_0__3[4];
              if (col_2__1 * 2 - 1 >= 0) {
                const int col_3__8 = ((col) & 7);
                const int col_0__8 = ((col) / 336);
                const int at_0__12 = col_3__8 + col_2__1 * 16 + col_1__1 * 176 + col_0__8 * 1144 - 8;
                const Vec<float, 4> x_1_v_0__12 = *reinterpret_cast<const Vec<float, 4>*>(p_x_1 + (at_0__12));
                #pragma unroll
                for (int lane = 0; lane < 4; ++lane) {
                  const float x_1__12 = load_as<float>(x_1_v_0__12.v[lane]);
                  reduce_window_sum_29_pad_lanes_0__3[lane] = x_1__12;
                }
              } else {
                #pragma unroll
                for (int lane = 0; lane < 4; ++lane) {
                  reduce_window_sum_29_pad_lanes_0__3[lane] = 0.0f;
                }
              }
              const int col_3__9 = ((col) & 7);
              const int col_0__9 = ((col) / 336);
              const int at_0__13 = col_3__9 + col_2__1 * 16 + col_1__1 * 176 + col_0__9 * 1144;
              const Vec<float, 4> x_1_v_0__13 = *reinterpret_cast<const Vec<float, 4>*>(p_x_1 + (at_0__13));
              float reduce_window_sum_29_pad_lanes_0__4[4];
              if (col_2__1 * 2 + 1 < 11) {
                const int at_0__14 = col_3__9 + col_2__1 * 16 + col_1__1 * 176 + col_0__9 * 1144 + 8;
                const Vec<float, 4> x_1_v_0__14 = *reinterpret_cast<const Vec<float, 4>*>(p_x_1 + (at_0__14));
                #pragma unroll
                for (int lane = 0; lane < 4; ++lane) {
                  const float x_1__14 = load_as<float>(x_1_v_0__14.v[lane]);
                  reduce_window_sum_29_pad_lanes_0__4[lane] = x_1__14;
                }
              } else {
                #pragma unroll
                for (int lane = 0; lane < 4; ++lane) {
                  reduce_window_sum_29_pad_lanes_0__4[lane] = 0.0f;
                }
              }
              float reduce_window_sum_29_pad_lanes_0__5[4];
              if (col_1__1 * 2 + 1 < 13 && col_2__1 * 2 - 1 >= 0) {
                const int at_0__15 = col_3__9 + col_2__1 * 16 + col_1__1 * 176 + col_0__9 * 1144 + 80;
                const Vec<float, 4> x_1_v_0__15 = *reinterpret_cast<const Vec<float, 4>*>(p_x_1 + (at_0__15));
                #pragma unroll
                for (int lane = 0; lane < 4; ++lane) {
                  const float x_1__15 = load_as<float>(x_1_v_0__15.v[lane]);
                  reduce_window_sum_29_pad_lanes_0__5[lane] = x_1__15;
                }
              } else {
                #pragma unroll
                for (int lane = 0; lane < 4; ++lane) {
                  reduce_window_sum_29_pad_lanes_0__5[lane] = 0.0f;
                }
              }
              float reduce_window_sum_29_pad_lanes_0__6[4];
              if (col_1__1 * 2 + 1 < 13) {
                const int at_0__16 = col_3__9 + col_2__1 * 16 + col_1__1 * 176 + col_0__9 * 1144 + 88;
                const Vec<float, 4> x_1_v_0__16 = *reinterpret_cast<const Vec<float, 4>*>(p_x_1 + (at_0__16));
                #pragma unroll
                for (int lane = 0; lane < 4; ++lane) {
                  const float x_1__16 = load_as<float>(x_1_v_0__16.v[lane]);
                  reduce_window_sum_29_pad_lanes_0__6[lane] = x_1__16;
                }
              } else {
                #pragma unroll
                for (int lane = 0; lane < 4; ++lane) {
                  reduce_window_sum_29_pad_lanes_0__6[lane] = 0.0f;
                }
              }
              float reduce_window_sum_29_pad_lanes_0__7[4];
              if (col_1__1 * 2 + 1 < 13 && col_2__1 * 2 + 1 < 11) {
                const int at_0__17 = col_3__9 + col_2__1 * 16 + col_1__1 * 176 + col_0__9 * 1144 + 96;
                const Vec<float, 4> x_1_v_0__17 = *reinterpret_cast<const Vec<float, 4>*>(p_x_1 + (at_0__17));
                #pragma unroll
                for (int lane = 0; lane < 4; ++lane) {
                  const float x_1__17 = load_as<float>(x_1_v_0__17.v[lane]);
                  reduce_window_sum_29_pad_lanes_0__7[lane] = x_1__17;
                }
              } else {
                #pragma unroll
                for (int lane = 0; lane < 4; ++lane) {
                  reduce_window_sum_29_pad_lanes_0__7[lane] = 0.0f;
                }
              }
              float reduce_window_sum_28_pad_lanes_0[4];
              if (col_1__1 * 2 - 1 >= 0 && col_2__1 * 2 - 1 >= 0) {
                #pragma unroll
                for (int lane = 0; lane < 4; ++lane) {
                  reduce_window_sum_28_pad_lanes_0[lane] = 1.0f;
                }
              } else {
                #pragma unroll
                for (int lane = 0; lane < 4; ++lane) {
                  reduce_window_sum_28_pad_lanes_0[lane] = 0.0f;
                }
              }
              float reduce_window_sum_28_pad_lanes_0__1[4];
              if (col_1__1 * 2 - 1 >= 0) {
                #pragma unroll
                for (int lane = 0; lane < 4; ++lane) {
                  reduce_window_sum_28_pad_lanes_0__1[lane] = 1.0f;
                }
              } else {
                #pragma unroll
                for (int lane = 0; lane < 4; ++lane) {
                  reduce_window_sum_28_pad_lanes_0__1[lane] = 0.0f;
                }
              }
              float reduce_window_sum_28_pad_lanes_0__2[4];
              if (col_1__1 * 2 - 1 >= 0 && col_2__1 * 2 + 1 < 11) {
                #pragma unroll
                for (int lane = 0; lane < 4; ++lane) {
                  reduce_window_sum_28_pad_lanes_0__2[lane] = 1.0f;
                }
              } else {
                #pragma unroll
                for (int lane = 0; lane < 4; ++lane) {
                  reduce_window_sum_28_pad_lanes_0__2[lane] = 0.0f;
                }
              }
              float reduce_window_sum_28_pad_lanes_0__3[4];
              if (col_2__1 * 2 - 1 >= 0) {
                #pragma unroll
                for (int lane = 0; lane < 4; ++lane) {
                  reduce_window_sum_28_pad_lanes_0__3[lane] = 1.0f;
                }
              } else {
                #pragma unroll
                for (int lane = 0; lane < 4; ++lane) {
                  reduce_window_sum_28_pad_lanes_0__3[lane] = 0.0f;
                }
              }
              float reduce_window_sum_28_pad_lanes_0__4[4];
              if (col_2__1 * 2 + 1 < 11) {
                #pragma unroll
                for (int lane = 0; lane < 4; ++lane) {
                  reduce_window_sum_28_pad_lanes_0__4[lane] = 1.0f;
                }
              } else {
                #pragma unroll
                for (int lane = 0; lane < 4; ++lane) {
                  reduce_window_sum_28_pad_lanes_0__4[lane] = 0.0f;
                }
              }
              float reduce_window_sum_28_pad_lanes_0__5[4];
              if (col_1__1 * 2 + 1 < 13 && col_2__1 * 2 - 1 >= 0) {
                #pragma unroll
                for (int lane = 0; lane < 4; ++lane) {
                  reduce_window_sum_28_pad_lanes_0__5[lane] = 1.0f;
                }
              } else {
                #pragma unroll
                for (int lane = 0; lane < 4; ++lane) {
                  reduce_window_sum_28_pad_lanes_0__5[lane] = 0.0f;
                }
              }
              float reduce_window_sum_28_pad_lanes_0__6[4];
              if (col_1__1 * 2 + 1 < 13) {
                #pragma unroll
                for (int lane = 0; lane < 4; ++lane) {
                  reduce_window_sum_28_pad_lanes_0__6[lane] = 1.0f;
                }
              } else {
                #pragma unroll
                for (int lane = 0; lane < 4; ++lane) {
                  reduce_window_sum_28_pad_lanes_0__6[lane] = 0.0f;
                }
              }
              float reduce_window_sum_28_pad_lanes_0__7[4];
              if (col_1__1 * 2 + 1 < 13 && col_2__1 * 2 + 1 < 11) {
                #pragma unroll
                for (int lane = 0; lane < 4; ++lane) {
                  reduce_window_sum_28_pad_lanes_0__7[lane] = 1.0f;
                }
              } else {
                #pragma unroll
                for (int lane = 0; lane < 4; ++lane) {
                  reduce_window_sum_28_pad_lanes_0__7[lane] = 0.0f;
                }
              }
              Vec<float, 4> div_2_w_0;
              #pragma unroll
              for (int lane = 0; lane < 4; ++lane) {
                const float reduce_window_sum_29_add_0 = hlo_add(0.0f, reduce_window_sum_29_pad_lanes_0[lane]);
                const float reduce_window_sum_29_add_2 = hlo_add(reduce_window_sum_29_add_0, reduce_window_sum_29_pad_lanes_0__1[lane]);
                const float reduce_window_sum_29_add_3 = hlo_add(reduce_window_sum_29_add_2, reduce_window_sum_29_pad_lanes_0__2[lane]);
                const float reduce_window_sum_29_add_4 = hlo_add(reduce_window_sum_29_add_3, reduce_window_sum_29_pad_lanes_0__3[lane]);
                const float x_1__13 = load_as<float>(x_1_v_0__13.v[lane]);
                const float reduce_window_sum_29_add_5 = hlo_add(reduce_window_sum_29_add_4, x_1__13);
                const float reduce_window_sum_29_add_6 = hlo_add(reduce_window_sum_29_add_5, reduce_window_sum_29_pad_lanes_0__4[lane]);
                const float reduce_window_sum_29_add_7 = hlo_add(reduce_window_sum_29_add_6, reduce_window_sum_29_pad_lanes_0__5[lane]);
                const float reduce_window_sum_29_add_8 = hlo_add(reduce_window_sum_29_add_7, reduce_window_sum_29_pad_lanes_0__6[lane]);
                const float reduce_window_sum_29_add_9 = hlo_add(reduce_window_sum_29_add_8, reduce_window_sum_29_pad_lanes_0__7[lane]);
                const float reduce_window_sum_28_add_0 = hlo_add(0.0f, reduce_window_sum_28_pad_lanes_0[lane]);
                const float reduce_window_sum_28_add_2 = hlo_add(reduce_window_sum_28_add_0, reduce_window_sum_28_pad_lanes_0__1[lane]);
                const float reduce_window_sum_28_add_3 = hlo_add(reduce_window_sum_28_add_2, reduce_window_sum_28_pad_lanes_0__2[lane]);
                const float reduce_window_sum_28_add_4 = hlo_add(reduce_window_sum_28_add_3, reduce_window_sum_28_pad_lanes_0__3[lane]);
                const float reduce_window_sum_28_add_5 = hlo_add(reduce_window_sum_28_add_4, 1.0f);
                const float reduce_window_sum_28_add_6 = hlo_add(reduce_window_sum_28_add_5, reduce_window_sum_28_pad_lanes_0__4[lane]);
                const float reduce_window_sum_28_add_7 = hlo_add(reduce_window_sum_28_add_6, reduce_window_sum_28_pad_lanes_0__5[lane]);
                const float reduce_window_sum_28_add_8 = hlo_add(reduce_window_sum_28_add_7, reduce_window_sum_28_pad_lanes_0__6[lane]);
                const float reduce_window_sum_28_add_9 = hlo_add(reduce_window_sum_28_add_8, reduce_window_sum_28_pad_lanes_0__7[lane]);
                const float div_2 = hlo_divide(reduce_window_sum_29_add_9, reduce_window_sum_28_add_9);
                div_2_w_0.v[lane] = store_as<float>(div_2);
              }
              *reinterpret_cast<Vec<float, 4>*>(p_div_2 + (col)) = div_2_w_0;
            }
          }
        }
      }
    }
  } else {
    {  // loop 2: outer 1 / 1 threads, row 1 / 1 threads x 1, col 2x11x9x8 / 256 threads x 1 x 8; 1 tasks; element-wise: flat tiles
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
            const int col = l * 2048 + tx * 8;
            if (col < 1584) {
              const int col_2__2 = ((col) % 72);
              const int col_1__2 = ((((col) / 72)) % 11);
              const int col_0__10 = ((col) / 792);
              const int at_0__18 = col_2__2 + col_1__2 * 88 + col_0__10 * 1144;
              const Vec<bf16, 8> y_1_v_0 = *reinterpret_cast<const Vec<bf16, 8>*>(p_y_1 + (at_0__18));
              const int at_0__19 = col_2__2 + col_1__2 * 88 + col_0__10 * 1144 + 8;
              const Vec<bf16, 8> y_1_v_0__1 = *reinterpret_cast<const Vec<bf16, 8>*>(p_y_1 + (at_0__19));
              const int at_0__20 = col_2__2 + col_1__2 * 88 + col_0__10 * 1144 + 16;
              const Vec<bf16, 8> y_1_v_0__2 = *reinterpret_cast<const Vec<bf16, 8>*>(p_y_1 + (at_0__20));
              const int at_0__21 = col_2__2 + col_1__2 * 88 + col_0__10 * 1144 + 88;
              const Vec<bf16, 8> y_1_v_0__3 = *reinterpret_cast<const Vec<bf16, 8>*>(p_y_1 + (at_0__21));
              const int at_0__22 = col_2__2 + col_1__2 * 88 + col_0__10 * 1144 + 96;
              const Vec<bf16, 8> y_1_v_0__4 = *reinterpret_cast<const Vec<bf16, 8>*>(p_y_1 + (at_0__22));
              const int at_0__23 = col_2__2 + col_1__2 * 88 + col_0__10 * 1144 + 104;
              const Vec<bf16, 8> y_1_v_0__5 = *reinterpret_cast<const Vec<bf16, 8>*>(p_y_1 + (at_0__23));
              const int at_0__24 = col_2__2 + col_1__2 * 88 + col_0__10 * 1144 + 176;
              const Vec<bf16, 8> y_1_v_0__6 = *reinterpret_cast<const Vec<bf16, 8>*>(p_y_1 + (at_0__24));
              const int at_0__25 = col_2__2 + col_1__2 * 88 + col_0__10 * 1144 + 184;
              const Vec<bf16, 8> y_1_v_0__7 = *reinterpret_cast<const Vec<bf16, 8>*>(p_y_1 + (at_0__25));
              const int at_0__26 = col_2__2 + col_1__2 * 88 + col_0__10 * 1144 + 192;
              const Vec<bf16, 8> y_1_v_0__8 = *reinterpret_cast<const Vec<bf16, 8>*>(p_y_1 + (at_0__26));
              Lanes<bf16, 8> reduce_window_5_w_0;
              #pragma unroll
              for (int lane = 0; lane < 8; ++lane) {
                const float y_1 = bf16_lane(y_1_v_0, lane);
                const float reduce_window_5_convert_0 = hlo_convert<float, bf16>(y_1);
                const float reduce_window_5_add_0 = hlo_add(0.0f, reduce_window_5_convert_0);
                const float y_1__1 = bf16_lane(y_1_v_0__1, lane);
                const float reduce_window_5_convert_0__1 = hlo_convert<float, bf16>(y_1__1);
                const float reduce_window_5_add_2 = hlo_add(reduce_window_5_add_0, reduce_window_5_convert_0__1);
                const float y_1__2 = bf16_lane(y_1_v_0__2, lane);
                const float reduce_window_5_convert_0__2 = hlo_convert<float, bf16>(y_1__2);
                const float reduce_window_5_add_3 = hlo_add(reduce_window_5_add_2, reduce_window_5_convert_0__2);
                const float y_1__3 = bf16_lane(y_1_v_0__3, lane);
                const float reduce_window_5_convert_0__3 = hlo_convert<float, bf16>(y_1__3);
                const float reduce_window_5_add_4 = hlo_add(reduce_window_5_add_3, reduce_window_5_convert_0__3);
                const float y_1__4 = bf16_lane(y_1_v_0__4, lane);
                const float reduce_window_5_convert_0__4 = hlo_convert<float, bf16>(y_1__4);
                const float reduce_window_5_add_5 = hlo_add(reduce_window_5_add_4, reduce_window_5_convert_0__4);
                const float y_1__5 = bf16_lane(y_1_v_0__5, lane);
                const float reduce_window_5_convert_0__5 = hlo_convert<float, bf16>(y_1__5);
                const float reduce_window_5_add_6 = hlo_add(reduce_window_5_add_5, reduce_window_5_convert_0__5);
                const float y_1__6 = bf16_lane(y_1_v_0__6, lane);
                const float reduce_window_5_convert_0__6 = hlo_convert<float, bf16>(y_1__6);
                const float reduce_window_5_add_7 = hlo_add(reduce_window_5_add_6, reduce_window_5_convert_0__6);
                const float y_1__7 = bf16_lane(y_1_v_0__7, lane);
                const float reduce_window_5_convert_0__7 = hlo_convert<float, bf16>(y_1__7);
                const float reduce_window_5_add_8 = hlo_add(reduce_window_5_add_7, reduce_window_5_convert_0__7);
                const float y_1__8 = bf16_lane(y_1_v_0__8, lane);
                const float reduce_window_5_convert_0__8 = hlo_convert<float, bf16>(y_1__8);
                const float reduce_window_5_add_9 = hlo_add(reduce_window_5_add_8, reduce_window_5_convert_0__8);
                const float reduce_window_5 = hlo_convert<float, float>(reduce_window_5_add_9);
                reduce_window_5_w_0.v[lane] = reduce_window_5;
              }
              store_lanes(p_reduce_window_5 + (col), reduce_window_5_w_0);
            }
          }
        }
      }
    }
    {  // loop 3: outer 2 / 1 threads, row 13x11 / 128 threads x 2, col 8 / 2 threads x 1 x 4; 2 tasks; column-reduce: 128 rows x 2 threads a block
      const int thread = threadIdx.x;
      const int tx = threadIdx.x % 2;
      const int ty = threadIdx.x / 2;
      const int to = 0;
      const int first = int(blockIdx.x) - 3;
      if (first >= 0 && first < 2) {
        const int task = first;
        const int outer = task;
        Reduce0::State reduce_window_sum_30_reduce_state_0[4];
        #pragma unroll
        for (int i = 0; i < 4; ++i) reduce_window_sum_30_reduce_state_0[i] = Reduce0::identity();
        {
          const int turn = 0;
          const int k = turn;
          const int row = k * 128 + ty;
          {
            const int l = 0;
            const int col = l * 8 + tx * 4;
            const int at_0__27 = outer * 1144 + row * 8 + col;
            const Vec<float, 4> x_1_v_0__18 = *reinterpret_cast<const Vec<float, 4>*>(p_x_1 + (at_0__27));
            #pragma unroll
            for (int lane = 0; lane < 4; ++lane) {
              const float x_1__18 = load_as<float>(x_1_v_0__18.v[lane]);
              reduce_window_sum_30_reduce_state_0[l * 4 + lane] = Reduce0::combine(reduce_window_sum_30_reduce_state_0[l * 4 + lane], Reduce0::State{x_1__18});
            }
          }
        }
        {
          const int turn = 0;
          const int k = 1;
          const int row_raw = k * 128 + ty;
          const int row = clamped(row_raw, 142);
          {
            const int l = 0;
            const int col = l * 8 + tx * 4;
            const int at_0__27 = outer * 1144 + row * 8 + col;
            const Vec<float, 4> x_1_v_0__18 = *reinterpret_cast<const Vec<float, 4>*>(p_x_1 + (at_0__27));
            #pragma unroll
            for (int lane = 0; lane < 4; ++lane) {
              const float x_1__18 = load_as<float>(x_1_v_0__18.v[lane]);
              if (row_raw < 143) {
                reduce_window_sum_30_reduce_state_0[l * 4 + lane] = Reduce0::combine(reduce_window_sum_30_reduce_state_0[l * 4 + lane], Reduce0::State{x_1__18});
              }
            }
          }
        }
        reduce_strided<Reduce0, 128, 2, 256, 4, false, false>(reduce_window_sum_30_reduce_state_0, exchange_0_0);
        #pragma unroll
        for (int k = 0; k < 2; ++k) {
          const int row = k * 128 + ty;
          if (row < 143) {
            {
              const int l = 0;
              const int col = l * 8 + tx * 4;
              const int at_0__28 = outer * 8 + col;
              Vec<float, 4> div_3_divide_w_0;
              #pragma unroll
              for (int lane = 0; lane < 4; ++lane) {
                const float reduce_window_sum_30_reduce_0 = reduce_window_sum_30_reduce_state_0[l * 4 + lane].f0;
                const float div_3_divide_0 = hlo_divide_shared(reduce_window_sum_30_reduce_0, 143.0f);
                div_3_divide_w_0.v[lane] = store_as<float>(div_3_divide_0);
              }
              if (row < 1) {
                *reinterpret_cast<Vec<float, 4>*>(p_div_3_divide_0 + (at_0__28)) = div_3_divide_w_0;
              }
            }
          }
        }
      }
    }
    {  // loop 4: outer 1 / 1 threads, row 1 / 1 threads x 1, col 8x47 / 256 threads x 1 x 1; 2 tasks; element-wise: flat tiles
      const int thread = threadIdx.x;
      const int tx = threadIdx.x;
      const int ty = 0;
      const int to = 0;
      const int first = int(blockIdx.x) - 5;
      if (first >= 0) {
        const float reduce_window_sum_31_add_0 = hlo_add(0.0f, 0.0f);
        const float reduce_window_sum_31_add_2 = hlo_add(reduce_window_sum_31_add_0, 0.0f);
        const float reduce_window_sum_31_add_3 = hlo_add(reduce_window_sum_31_add_2, 0.0f);
        {
          const int task = first;
          const int col_tile = task;
          {
            const int k = 0;
            {
              const int l = 0;
              const int col = l * 256 + tx + col_tile * 256;
              if (col < 376) {
                const int col_0__11 = ((col) / 47);
                float reduce_window_sum_31_pad_0;
                if (col_0__11 * 2 < 13) {
                  const int col_1__3 = ((col) % 47);
                  const int at_0__29 = col_1__3 + col_0__11 * 50;
                  const float z_1 = load_as<float>(p_z_1[at_0__29]);
                  reduce_window_sum_31_pad_0 = z_1;
                } else {
                  reduce_window_sum_31_pad_0 = 0.0f;
                }
                const float reduce_window_sum_31_add_4 = hlo_add(reduce_window_sum_31_add_3, reduce_window_sum_31_pad_0);
                float reduce_window_sum_31_pad_0__1;
                if (col_0__11 * 2 < 13) {
                  const int col_1__4 = ((col) % 47);
                  const int at_0__30 = col_1__4 + col_0__11 * 50 + 3;
                  const float z_1__1 = load_as<float>(p_z_1[at_0__30]);
                  reduce_window_sum_31_pad_0__1 = z_1__1;
                } else {
                  reduce_window_sum_31_pad_0__1 = 0.0f;
                }
                const float reduce_window_sum_31_add_5 = hlo_add(reduce_window_sum_31_add_4, reduce_window_sum_31_pad_0__1);
                const int col_1__5 = ((col) % 47);
                float reduce_window_sum_31_pad_0__2;
                if (col_0__11 * 2 < 13 && col_1__5 + 6 < 50) {
                  const int at_0__31 = col_1__5 + col_0__11 * 50 + 6;
                  const float z_1__2 = load_as<float>(p_z_1[at_0__31]);
                  reduce_window_sum_31_pad_0__2 = z_1__2;
                } else {
                  reduce_window_sum_31_pad_0__2 = 0.0f;
                }
                const float reduce_window_sum_31_add_6 = hlo_add(reduce_window_sum_31_add_5, reduce_window_sum_31_pad_0__2);
                p_reduce_window_sum_31_add_6[col] = store_as<float>(reduce_window_sum_31_add_6);
              }
            }
          }
        }
      }
    }
  }
}
