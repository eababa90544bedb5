#include "astitch.cuh"
// stitch_0: grid 4 x 512 threads, 110592 B shared
//   jit(train)/reduce_sum
//   jit(train)/div
//   jit(train)/sub
//   jit(train)/add
//   jit(train)/rsqrt
//   jit(train)/mul
//   max
struct Reduce0 {
  static constexpr bool commutative = false;
  static constexpr Joint joint = JOINT_MOMENTS;
  struct State { float f0; float f1; float f2; };
  static __device__ __forceinline__ State identity() { return State{0.0f, 0.0f, 0.0f}; }
  static __device__ __forceinline__ State combine(const State a, const State b) {
    return join_moments(a, b);
  }
  static constexpr int payload = 3, words = 2;
  static __device__ __forceinline__ void publish(const State s, unsigned long long* to, unsigned tag) {
    unsigned words[payload], *next = words;
    words_of_field(next, s.f0);
    words_of_field(next, s.f1);
    words_of_field(next, s.f2);
    publish_words(to, words, tag);
  }
  static __device__ __forceinline__ State state_of(const unsigned* words) {
    const float f0 = field_of_words<float>(words);
    const float f1 = field_of_words<float>(words);
    const float f2 = field_of_words<float>(words);
    return State{f0, f1, f2};
  }
  static __device__ __forceinline__ State take(const State s, int lane) {
    return State{value_of_lane(s.f0, lane), value_of_lane(s.f1, lane), value_of_lane(s.f2, lane)};
  }
  static __device__ __forceinline__ State shuffle(const State s, int mask) {
    return State{shuffle_value(s.f0, mask), shuffle_value(s.f1, mask), shuffle_value(s.f2, mask)};
  }
};
extern "C" __global__ void __launch_bounds__(512, 2) stitch_0(
    const float* __restrict__ p_x_1,
    const float* __restrict__ p_gamma_1,
    const float* __restrict__ p_beta_1,
    const float* __restrict__ p_running_mean_1,
    const float* __restrict__ p_running_variance_1,
    float* __restrict__ p_div_2,
    float* __restrict__ p_div_3,
    float* __restrict__ p_max_3,
    float* __restrict__ p_add_14,
    float* __restrict__ p_add_15,
    unsigned int* barrier) {
  ASTITCH_SHARED_ARENA(110592);
  ASTITCH_SHARED(float, x_1_now_0, 0, 24576);
  ASTITCH_SHARED(Reduce0::State, exchange_0_0, 98304, 512);
  ASTITCH_SHARED(Reduce0::State, exchange_0_1, 104448, 512);
  const unsigned tag = astitch_launch_tag(barrier);
  unsigned long long* const exchange = astitch_tagged_words(barrier);
  {  // loop 0: outer 1 / 1 threads, row 8x10x10 / 16 threads x 16, col 48 / 32 threads x 1 x 1; 8 tasks; column-reduce: 16 rows x 32 threads a block, rows split over 4 bloc...
    const int thread = threadIdx.x;
    const int tx = thread % 32;
    const int ty = thread / 32 % 16;
    const int to = thread / 512;
    const int first = blockIdx.x;
    if (const int next = first; next < 8) {
      const int task = next;
      const int next_turn = 0;
      const int row_tile = ((task) % 4);
      const int col_tile = ((task) / 4);
      #pragma unroll
      for (int k = 0; k < 16; ++k) {
        const int row = k * 16 + ty + row_tile * 256;
        if (row < 800) {
          {
            const int l = 0;
            const int col = l * 32 + tx + col_tile * 32;
            if (col < 48) {
              const int at_0 = row * 48 + col;
              copy_async(&shared_vec<float, 1>(x_1_now_0, (next_turn * 8192 + k * 512 + l * 512 + thread) * 1), p_x_1 + (at_0));
            }
          }
        }
      }
    }
    copy_commit();
    if (const int next = first + gridDim.x; next < 8) {
      const int task = next;
      const int next_turn = 1;
      const int row_tile = ((task) % 4);
      const int col_tile = ((task) / 4);
      #pragma unroll
      for (int k = 0; k < 16; ++k) {
        const int row = k * 16 + ty + row_tile * 256;
        if (row < 800) {
          {
            const int l = 0;
            const int col = l * 32 + tx + col_tile * 32;
            if (col < 48) {
              const int at_0 = row * 48 + col;
              copy_async(&shared_vec<float, 1>(x_1_now_0, (next_turn * 8192 + k * 512 + l * 512 + thread) * 1), p_x_1 + (at_0));
            }
          }
        }
      }
    }
    copy_commit();
    int turn = 2;
    for (int task = first; task < 8 + 1 * gridDim.x; task += gridDim.x) {
      turn = turn == 2 ? 0 : turn + 1;
      if (task < 8) {
        const int row_tile = ((task) % 4);
        const int col_tile = ((task) / 4);
        copy_wait<1>();
        Reduce0::State reduce_sum_14_moments_state_0[1];
        #pragma unroll
        for (int i = 0; i < 1; ++i) reduce_sum_14_moments_state_0[i] = Reduce0::identity();
        #pragma unroll
        for (int k = 0; k < 16; ++k) {
          const int row = k * 16 + ty + row_tile * 256;
          if (row < 800) {
            {
              const int l = 0;
              const int col = l * 32 + tx + col_tile * 32;
              if (col < 48) {
                const float x_1 = load_as<float>(x_1_now_0[turn * 8192 + k * 512 + l * 512 + thread]);
                add_to_moments(reduce_sum_14_moments_state_0[l], x_1);
              }
            }
          }
        }
        reduce_strided<Reduce0, 16, 32, 512, 4, true, true>(reduce_sum_14_moments_state_0, exchange_0_0);
        {
          const int l = 0;
          const int col = l * 32 + tx + col_tile * 32;
          if (col < 48) {
            if (ty < 1) {
              Reduce0::publish(reduce_sum_14_moments_state_0[l], exchange + (col * 2 + row_tile * 96), tag);
            }
          }
        }
      } else __syncthreads();  // parts what comes before from what comes after, as inside
      if (task - 1 * int(gridDim.x) >= first) {
        const int last_task = task - 1 * int(gridDim.x);
        const int last_turn = turn < 1 ? turn + 2 : turn - 1;
        {
          const int task = last_task;
          const int turn = last_turn;
          const int row_tile = ((task) % 4);
          const int col_tile = ((task) / 4);
          Reduce0::State reduce_sum_14_moments_state_0__1[1];
          #pragma unroll
          for (int i = 0; i < 1; ++i) reduce_sum_14_moments_state_0__1[i] = Reduce0::identity();
          {
            const int l = 0;
            const int col = l * 32 + tx + col_tile * 32;
            if (col < 48) {
              collect_parts<Reduce0, 16, 4, 96>(reduce_sum_14_moments_state_0__1[l], exchange + (col * 2), ty, tag);
            }
          }
          reduce_strided<Reduce0, 16, 32, 512, 4, true, false>(reduce_sum_14_moments_state_0__1, exchange_0_1);
          #pragma unroll
          for (int k = 0; k < 16; ++k) {
            const int row = k * 16 + ty + row_tile * 256;
            if (row < 800) {
              {
                const int l = 0;
                const int col = l * 32 + tx + col_tile * 32;
                if (col < 48) {
                  const float reduce_sum_14_get_tuple_element_0 = reduce_sum_14_moments_state_0__1[l].f1;
                  const float reduce_sum_14_multiply_0 = hlo_multiply(reduce_sum_14_get_tuple_element_0, 800.0f);
                  const float div_2 = hlo_divide_shared(reduce_sum_14_multiply_0, 800.0f);
                  if (row < 1 && row_tile < 1) {
                    p_div_2[col] = store_as<float>(div_2);
                  }
                  const float reduce_sum_15_get_tuple_element_0 = reduce_sum_14_moments_state_0__1[l].f2;
                  const float div_3 = hlo_divide_shared(reduce_sum_15_get_tuple_element_0, 800.0f);
                  if (row < 1 && row_tile < 1) {
                    p_div_3[col] = store_as<float>(div_3);
                  }
                  const float x_1__1 = load_as<float>(x_1_now_0[turn * 8192 + k * 512 + l * 512 + thread]);
                  const float sub_15 = hlo_subtract(x_1__1, div_2);
                  const float add_9 = hlo_add(div_3, 1e-05f);
                  const float rsqrt_1 = hlo_rsqrt(add_9);
                  const float gamma_1 = load_as<float>(p_gamma_1[col]);
                  const float mul_9 = hlo_multiply(rsqrt_1, gamma_1);
                  const float mul_13 = hlo_multiply(sub_15, mul_9);
                  const float beta_1 = load_as<float>(p_beta_1[col]);
                  const float add_13 = hlo_add(mul_13, beta_1);
                  const float max_3 = hlo_maximum(add_13, 0.0f);
                  const int at_0__1 = row * 48 + col;
                  p_max_3[at_0__1] = store_as<float>(max_3);
                  const float running_mean_1 = load_as<float>(p_running_mean_1[col]);
                  const float mul_14 = hlo_multiply(running_mean_1, 0.9f);
                  const float mul_15 = hlo_multiply(div_2, 0.1f);
                  const float add_14 = hlo_add(mul_14, mul_15);
                  if (row < 1 && row_tile < 1) {
                    p_add_14[col] = store_as<float>(add_14);
                  }
                  const float running_variance_1 = load_as<float>(p_running_variance_1[col]);
                  const float mul_16 = hlo_multiply(running_variance_1, 0.9f);
                  const float mul_17 = hlo_multiply(div_3, 0.1f);
                  const float add_15 = hlo_add(mul_16, mul_17);
                  if (row < 1 && row_tile < 1) {
                    p_add_15[col] = store_as<float>(add_15);
                  }
                }
              }
            }
          }
        }
      } else __syncthreads();
      if (const int next = task + 2 * gridDim.x; next < 8) {
        const int task = next;
        const int next_turn = turn < 1 ? turn + 2 : turn - 1;
        const int row_tile = ((task) % 4);
        const int col_tile = ((task) / 4);
        #pragma unroll
        for (int k = 0; k < 16; ++k) {
          const int row = k * 16 + ty + row_tile * 256;
          if (row < 800) {
            {
              const int l = 0;
              const int col = l * 32 + tx + col_tile * 32;
              if (col < 48) {
                const int at_0 = row * 48 + col;
                copy_async(&shared_vec<float, 1>(x_1_now_0, (next_turn * 8192 + k * 512 + l * 512 + thread) * 1), p_x_1 + (at_0));
              }
            }
          }
        }
      }
      copy_commit();
    }
  }
  astitch_end_launch(barrier);
}
