#include "astitch.cuh"
// stitch_0: grid 15 x 512 threads, 100736 B shared
//   jit(group_norm_many_pixels)/convert_element_type
//   jit(group_norm_many_pixels)/reshape
//   jit(group_norm_many_pixels)/reduce_sum
//   jit(group_norm_many_pixels)/div
//   jit(group_norm_many_pixels)/sub
//   jit(group_norm_many_pixels)/add
//   jit(group_norm_many_pixels)/rsqrt
//   jit(group_norm_many_pixels)/mul
struct Reduce0 {
  static constexpr bool commutative = false;
  static constexpr Joint joint = JOINT_MOMENTS;
  struct State { float f0; float f1; float f2; float f3; };
  static __device__ __forceinline__ State identity() { return State{0.0f, 0.0f, 0.0f, 0.0f}; }
  static __device__ __forceinline__ State combine(const State a, const State b) {
    return join_moments(a, b);
  }
  static constexpr int payload = 4, words = 4;
  static __device__ __forceinline__ void publish(const State s, unsigned long long* to, unsigned tag) {
    unsigned words[payload], *next = words;
    words_of_field(next, s.f0);
    words_of_field(next, s.f1);
    words_of_field(next, s.f2);
    words_of_field(next, s.f3);
    publish_words(to, words, tag);
  }
  static __device__ __forceinline__ State state_of(const unsigned* words) {
    const float f0 = field_of_words<float>(words);
    const float f1 = field_of_words<float>(words);
    const float f2 = field_of_words<float>(words);
    const float f3 = field_of_words<float>(words);
    return State{f0, f1, f2, f3};
  }
  static __device__ __forceinline__ State take(const State s, int lane) {
    return State{value_of_lane(s.f0, lane), value_of_lane(s.f1, lane), value_of_lane(s.f2, lane), value_of_lane(s.f3, lane)};
  }
  static __device__ __forceinline__ State shuffle(const State s, int mask) {
    return State{shuffle_value(s.f0, mask), shuffle_value(s.f1, mask), shuffle_value(s.f2, mask), shuffle_value(s.f3, mask)};
  }
};
extern "C" __global__ void __launch_bounds__(512, 2) stitch_0(
    const bf16* __restrict__ p_x_1,
    bf16* __restrict__ p_convert_element_type_3,
    unsigned int* barrier) {
  assume_threads<512>();
  ASTITCH_SHARED_ARENA(100736);
  ASTITCH_SHARED(bf16, x_1_now_0, 0, 49152);
  ASTITCH_SHARED(Reduce0::State, exchange_0_0, 98304, 144);
  ASTITCH_SHARED(Reduce0::State, exchange_0_1, 100608, 8);
  const unsigned tag = astitch_launch_tag(barrier);
  unsigned long long* const exchange = astitch_tagged_words(barrier);
  {  // loop 0: outer 6x8 / 8 threads, row 32x40 / 64 threads x 4, col 8 / 1 threads x 1 x 8; 30 tasks; mixed reduce: 64 rows x 8 neighbours x 1 threads a block, rows split ...
    const int thread = threadIdx.x;
    const int tx = 0;
    const int to = threadIdx.x % 8;
    const int ty = threadIdx.x / 8;
    const int first = blockIdx.x;
    if (const int next = first; next < 30) {
      const int task = next;
      const int next_turn = 0;
      const int outer = ((task) / 5) * 8 + to;
      const int row_tile = ((task) % 5);
      const int outer_1 = ((outer) & 7);
      const int outer_0 = ((outer) >> 3);
      #pragma unroll
      for (int k = 0; k < 4; ++k) {
        const int row = k * 64 + ty + row_tile * 256;
        {
          const int l = 0;
          const int col = l * 8 + tx * 8;
          const int at_0 = outer_1 * 8 + outer_0 * 81920 + row * 64 + col;
          copy_async(&shared_vec<bf16, 8>(x_1_now_0, (next_turn * 2048 + k * 512 + l * 512 + thread) * 8), p_x_1 + (at_0));
        }
      }
    }
    copy_commit();
    if (const int next = first + gridDim.x; next < 30) {
      const int task = next;
      const int next_turn = 1;
      const int outer = ((task) / 5) * 8 + to;
      const int row_tile = ((task) % 5);
      const int outer_1 = ((outer) & 7);
      const int outer_0 = ((outer) >> 3);
      #pragma unroll
      for (int k = 0; k < 4; ++k) {
        const int row = k * 64 + ty + row_tile * 256;
        {
          const int l = 0;
          const int col = l * 8 + tx * 8;
          const int at_0 = outer_1 * 8 + outer_0 * 81920 + row * 64 + col;
          copy_async(&shared_vec<bf16, 8>(x_1_now_0, (next_turn * 2048 + k * 512 + l * 512 + thread) * 8), p_x_1 + (at_0));
        }
      }
    }
    copy_commit();
    int turn = 2;
    for (int task = first; task < 30 + 1 * gridDim.x; task += gridDim.x) {
      turn = turn == 2 ? 0 : turn + 1;
      if (task < 30) {
        const int outer = ((task) / 5) * 8 + to;
        const int row_tile = ((task) % 5);
        copy_wait<1>();
        Reduce0::State reduce_sum_14_moments_state_0[1];
        #pragma unroll
        for (int i = 0; i < 1; ++i) reduce_sum_14_moments_state_0[i] = Reduce0::identity();
        const int outer_1__1 = ((outer) & 7);
        const int outer_0__1 = ((outer) >> 3);
        #pragma unroll
        for (int k = 0; k < 4; ++k) {
          const int row = k * 64 + ty + row_tile * 256;
          {
            const int l = 0;
            const int col = l * 8 + tx * 8;
            const int at_0__1 = outer_1__1 * 8 + outer_0__1 * 81920 + row * 64 + col;
            const Vec<bf16, 8> x_1_v_0 = shared_vec<bf16, 8>(x_1_now_0, (turn * 2048 + k * 512 + l * 512 + thread) * 8);
            float reduce_sum_14_moments_state_0_batch_0[8];
            #pragma unroll
            for (int lane = 0; lane < 8; ++lane) {
              const float x_1 = bf16_lane(x_1_v_0, lane);
              const float convert_element_type_2 = hlo_convert<float, bf16>(x_1);
              reduce_sum_14_moments_state_0_batch_0[lane] = convert_element_type_2;
            }
            add_batch_to_moments(reduce_sum_14_moments_state_0[0], reduce_sum_14_moments_state_0_batch_0);
          }
        }
        reduce_strided<Reduce0, 64, 8, 512, 4, true, true>(reduce_sum_14_moments_state_0, exchange_0_0);
        if (ty < 1) {
          Reduce0::publish(reduce_sum_14_moments_state_0[0], exchange + (outer * 20 + row_tile * 4), tag);
        }
      } else __syncthreads();  // parts what comes before from what comes after, as inside
      if (task - 1 * int(gridDim.x) >= first) {
        const int last_task = task - 1 * int(gridDim.x);
        const int last_turn = turn < 1 ? turn + 2 : turn - 1;
        {
          const int task = last_task;
          const int turn = last_turn;
          const int outer = ((task) / 5) * 8 + to;
          const int row_tile = ((task) % 5);
          // parts of 5 blocks, 1 tasks ago
          if (const int warp = thread / 32; warp < 8) {
            const int to = warp;
            const int outer = ((task) / 5) * 8 + to;
            const int row_tile = ((task) % 5);
            Reduce0::State reduce_sum_14_moments_state_0__1[1];
            #pragma unroll
            for (int i = 0; i < 1; ++i) reduce_sum_14_moments_state_0__1[i] = Reduce0::identity();
            collect_parts<Reduce0, 32, 5, 4>(reduce_sum_14_moments_state_0__1[0], exchange + (outer * 20), ((thread) & 31), tag);
            reduce_lanes<Reduce0, 32, 1>(reduce_sum_14_moments_state_0__1);
            if (thread % 32 == 0) exchange_0_1[to] = reduce_sum_14_moments_state_0__1[0];
          }
          __syncthreads();
          Reduce0::State reduce_sum_14_moments_total_0[1] = {exchange_0_1[to]};
          const float reduce_sum_14_get_tuple_element_0 = reduce_sum_14_moments_total_0[0].f1;
          const bool reduce_sum_14_is_finite_0 = hlo_is_finite(reduce_sum_14_get_tuple_element_0);
          const float reduce_sum_14_get_tuple_element_2 = reduce_sum_14_moments_total_0[0].f2;
          const float reduce_sum_14_add_0 = hlo_add(reduce_sum_14_get_tuple_element_0, reduce_sum_14_get_tuple_element_2);
          const float reduce_sum_14_select_0 = (reduce_sum_14_is_finite_0 ? reduce_sum_14_add_0 : reduce_sum_14_get_tuple_element_0);
          const float div_2_divide_0 = hlo_divide_shared(reduce_sum_14_select_0, 10240.0f);
          const float reduce_sum_15_get_tuple_element_0 = reduce_sum_14_moments_total_0[0].f3;
          const float div_3_divide_0 = hlo_divide_shared(reduce_sum_15_get_tuple_element_0, 10240.0f);
          const float add_3_add_0 = hlo_add(div_3_divide_0, 1e-05f);
          const float rsqrt_1_rsqrt_0 = hlo_rsqrt(add_3_add_0);
          const int outer_1__2 = ((outer) & 7);
          const int outer_0__2 = ((outer) >> 3);
          #pragma unroll
          for (int k = 0; k < 4; ++k) {
            const int row = k * 64 + ty + row_tile * 256;
            {
              const int l = 0;
              const int col = l * 8 + tx * 8;
              const int at_0__2 = outer_1__2 * 8 + outer_0__2 * 81920 + row * 64 + col;
              const Vec<bf16, 8> x_1_v_0__1 = shared_vec<bf16, 8>(x_1_now_0, (turn * 2048 + k * 512 + l * 512 + thread) * 8);
              Lanes<bf16, 8> convert_element_type_3_w_0;
              #pragma unroll
              for (int lane = 0; lane < 8; ++lane) {
                const float x_1__1 = bf16_lane(x_1_v_0__1, lane);
                const float convert_element_type_2__1 = hlo_convert<float, bf16>(x_1__1);
                const float sub_15 = hlo_subtract(convert_element_type_2__1, div_2_divide_0);
                const float mul_7 = hlo_multiply(sub_15, rsqrt_1_rsqrt_0);
                const float convert_element_type_3 = hlo_convert<float, float>(mul_7);
                convert_element_type_3_w_0.v[lane] = convert_element_type_3;
              }
              store_lanes(p_convert_element_type_3 + (at_0__2), convert_element_type_3_w_0);
            }
          }
        }
      } else __syncthreads();
      if (const int next = task + 2 * gridDim.x; next < 30) {
        const int task = next;
        const int next_turn = turn < 1 ? turn + 2 : turn - 1;
        const int outer = ((task) / 5) * 8 + to;
        const int row_tile = ((task) % 5);
        const int outer_1 = ((outer) & 7);
        const int outer_0 = ((outer) >> 3);
        #pragma unroll
        for (int k = 0; k < 4; ++k) {
          const int row = k * 64 + ty + row_tile * 256;
          {
            const int l = 0;
            const int col = l * 8 + tx * 8;
            const int at_0 = outer_1 * 8 + outer_0 * 81920 + row * 64 + col;
            copy_async(&shared_vec<bf16, 8>(x_1_now_0, (next_turn * 2048 + k * 512 + l * 512 + thread) * 8), p_x_1 + (at_0));
          }
        }
      }
      copy_commit();
    }
  }
  astitch_end_launch(barrier);
}
