#include "astitch.cuh"
// stitch_0: grid 14 x 512 threads, 98448 B shared
//   jit(softmax)/reduce_sum
//   jit(softmax)/reduce_max
//   jit(softmax)/sub
//   jit(softmax)/exp
//   jit(softmax)/div
struct Reduce0 {
  static constexpr bool commutative = false;
  static constexpr Joint joint = JOINT_EXPONENTIALS;
  struct State { float f0; float f1; };
  static __device__ __forceinline__ State identity() { return State{same_bits<float>(0xff800000u), 0.0f}; }
  static __device__ __forceinline__ State combine(const State a, const State b) {
    return join_exponentials(a, b);
  }
  static constexpr int payload = 2, words = 2;
  static __device__ __forceinline__ void publish(const State s, unsigned long long* to, unsigned tag) {
    unsigned words[payload], *next = words;
    words_of_field(next, s.f0);
    words_of_field(next, s.f1);
    publish_words(to, words, tag);
  }
  static __device__ __forceinline__ State state_of(const unsigned* words) {
    const float f0 = field_of_words<float>(words);
    const float f1 = field_of_words<float>(words);
    return State{f0, f1};
  }
  static __device__ __forceinline__ State take(const State s, int lane) {
    return State{value_of_lane(s.f0, lane), value_of_lane(s.f1, lane)};
  }
  static __device__ __forceinline__ State shuffle(const State s, int mask) {
    return State{shuffle_value(s.f0, mask), shuffle_value(s.f1, mask)};
  }
};
extern "C" __global__ void __launch_bounds__(512, 2) stitch_0(
    const float* __restrict__ p_x_1,
    float* __restrict__ p_div_7,
    unsigned int* barrier) {
  assume_threads<512>();
  ASTITCH_SHARED_ARENA(98448);
  ASTITCH_SHARED(float, x_1_now_0, 0, 24576);
  ASTITCH_SHARED(Reduce0::State, exchange_0_0, 98304, 16);
  ASTITCH_SHARED(Reduce0::State, exchange_0_1, 98432, 1);
  const unsigned tag = astitch_launch_tag(barrier);
  unsigned long long* const exchange = astitch_tagged_words(barrier);
  {  // loop 0: outer 4 / 1 threads, row 1 / 1 threads x 1, col 50000 / 512 threads x 4 x 4; 28 tasks; row-reduce, 4 rows < 14 blocks a wave: each row split over 7 blocks th...
    const int thread = threadIdx.x;
    const int tx = threadIdx.x;
    const int ty = 0;
    const int to = 0;
    const int first = blockIdx.x;
    if (const int next = first; next < 28) {
      const int task = next;
      const int next_turn = 0;
      const int outer = ((task) / 7);
      const int col_tile = ((task) % 7);
      {
        const int k = 0;
        #pragma unroll
        for (int l = 0; l < 4; ++l) {
          const int col = l * 2048 + tx * 4 + col_tile * 8192;
          if (col < 50000) {
            const int at_0 = outer * 50000 + col;
            copy_async(&shared_vec<float, 4>(x_1_now_0, (next_turn * 2048 + k * 2048 + l * 512 + thread) * 4), p_x_1 + (at_0));
          }
        }
      }
    }
    copy_commit();
    if (const int next = first + gridDim.x; next < 28) {
      const int task = next;
      const int next_turn = 1;
      const int outer = ((task) / 7);
      const int col_tile = ((task) % 7);
      {
        const int k = 0;
        #pragma unroll
        for (int l = 0; l < 4; ++l) {
          const int col = l * 2048 + tx * 4 + col_tile * 8192;
          if (col < 50000) {
            const int at_0 = outer * 50000 + col;
            copy_async(&shared_vec<float, 4>(x_1_now_0, (next_turn * 2048 + k * 2048 + l * 512 + thread) * 4), p_x_1 + (at_0));
          }
        }
      }
    }
    copy_commit();
    int turn = 2;
    for (int task = first; task < 28 + 1 * gridDim.x; task += gridDim.x) {
      turn = turn == 2 ? 0 : turn + 1;
      if (task < 28) {
        const int outer = ((task) / 7);
        const int col_tile = ((task) % 7);
        copy_wait<1>();
        Reduce0::State reduce_max_7_exponentials_state_0[1];
        #pragma unroll
        for (int i = 0; i < 1; ++i) reduce_max_7_exponentials_state_0[i] = Reduce0::identity();
        {
          const int k = 0;
          #pragma unroll
          for (int l = 0; l < 4; ++l) {
            const int col = l * 2048 + tx * 4 + col_tile * 8192;
            if (col < 50000) {
              const int at_0__1 = outer * 50000 + col;
              const Vec<float, 4> x_1_v_0 = shared_vec<float, 4>(x_1_now_0, (turn * 2048 + k * 2048 + l * 512 + thread) * 4);
              float reduce_max_7_exponentials_state_0_batch_0[4];
              #pragma unroll
              for (int lane = 0; lane < 4; ++lane) {
                const float x_1 = load_as<float>(x_1_v_0.v[lane]);
                reduce_max_7_exponentials_state_0_batch_0[lane] = x_1;
              }
              add_batch_to_exponentials(reduce_max_7_exponentials_state_0[0], reduce_max_7_exponentials_state_0_batch_0);
            }
          }
        }
        reduce_warps<Reduce0>(reduce_max_7_exponentials_state_0, exchange_0_0);
        __syncthreads();
        if (thread < 32) { combine_warps<Reduce0, 512, true>(reduce_max_7_exponentials_state_0, exchange_0_0); }
        if (tx < 1) {
          Reduce0::publish(reduce_max_7_exponentials_state_0[0], exchange + (outer * 14 + col_tile * 2), tag);
        }
      } else __syncthreads();  // parts what comes before from what comes after, as inside
      if (task - 1 * int(gridDim.x) >= first) {
        const int last_task = task - 1 * int(gridDim.x);
        const int last_turn = turn < 1 ? turn + 2 : turn - 1;
        {
          const int task = last_task;
          const int turn = last_turn;
          const int outer = ((task) / 7);
          const int col_tile = ((task) % 7);
          // parts of 7 blocks, 1 tasks ago
          if (const int warp = thread / 32; warp < 1) {
            const int to = warp;
            const int outer = ((task) / 7);
            const int col_tile = ((task) % 7);
            Reduce0::State reduce_max_7_exponentials_state_0__1[1];
            #pragma unroll
            for (int i = 0; i < 1; ++i) reduce_max_7_exponentials_state_0__1[i] = Reduce0::identity();
            collect_parts<Reduce0, 32, 7, 2>(reduce_max_7_exponentials_state_0__1[0], exchange + (outer * 14), ((thread) & 31), tag);
            reduce_lanes<Reduce0, 32, 1>(reduce_max_7_exponentials_state_0__1);
            if (thread % 32 == 0) exchange_0_1[to] = reduce_max_7_exponentials_state_0__1[0];
          }
          __syncthreads();
          Reduce0::State reduce_max_7_exponentials_total_0[1] = {exchange_0_1[to]};
          const float reduce_max_7_get_tuple_element_0 = reduce_max_7_exponentials_total_0[0].f0;
          const float reduce_sum_7_get_tuple_element_0 = reduce_max_7_exponentials_total_0[0].f1;
          const float reduce_sum_7_subtract_0 = hlo_subtract(reduce_max_7_get_tuple_element_0, reduce_max_7_get_tuple_element_0);
          const float reduce_sum_7_exponential_0 = hlo_exp(reduce_sum_7_subtract_0);
          const float reduce_sum_7_multiply_0 = hlo_multiply(reduce_sum_7_get_tuple_element_0, reduce_sum_7_exponential_0);
          {
            const int k = 0;
            #pragma unroll
            for (int l = 0; l < 4; ++l) {
              const int col = l * 2048 + tx * 4 + col_tile * 8192;
              if (col < 50000) {
                const int at_0__2 = outer * 50000 + col;
                const Vec<float, 4> x_1_v_0__1 = shared_vec<float, 4>(x_1_now_0, (turn * 2048 + k * 2048 + l * 512 + thread) * 4);
                Vec<float, 4> div_7_w_0;
                #pragma unroll
                for (int lane = 0; lane < 4; ++lane) {
                  const float x_1__1 = load_as<float>(x_1_v_0__1.v[lane]);
                  const float sub_7 = hlo_subtract(x_1__1, reduce_max_7_get_tuple_element_0);
                  const float exp_1 = hlo_exp(sub_7);
                  const float div_7 = hlo_divide_shared(exp_1, reduce_sum_7_multiply_0);
                  div_7_w_0.v[lane] = store_as<float>(div_7);
                }
                *reinterpret_cast<Vec<float, 4>*>(p_div_7 + (at_0__2)) = div_7_w_0;
              }
            }
          }
        }
      } else __syncthreads();
      if (const int next = task + 2 * gridDim.x; next < 28) {
        const int task = next;
        const int next_turn = turn < 1 ? turn + 2 : turn - 1;
        const int outer = ((task) / 7);
        const int col_tile = ((task) % 7);
        {
          const int k = 0;
          #pragma unroll
          for (int l = 0; l < 4; ++l) {
            const int col = l * 2048 + tx * 4 + col_tile * 8192;
            if (col < 50000) {
              const int at_0 = outer * 50000 + col;
              copy_async(&shared_vec<float, 4>(x_1_now_0, (next_turn * 2048 + k * 2048 + l * 512 + thread) * 4), p_x_1 + (at_0));
            }
          }
        }
      }
      copy_commit();
    }
  }
  astitch_end_launch(barrier);
}
