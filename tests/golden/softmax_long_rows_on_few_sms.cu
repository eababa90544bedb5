#include "astitch.cuh"
// stitch_0: grid 15 x 512 threads, 82048 B shared
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
    float* p_reduce_max_7_exponentials_partial0_0,
    float* p_reduce_max_7_exponentials_partial1_0,
    unsigned int* barrier) {
  ASTITCH_SHARED_ARENA(82048);
  ASTITCH_SHARED(float, x_1_now_0, 0, 20480);
  ASTITCH_SHARED(Reduce0::State, exchange_0_0, 81920, 16);
  {  // loop 0: outer 4 / 1 threads, row 1 / 1 threads x 1, col 50000 / 512 threads x 5 x 4; 20 tasks; row-reduce, 4 rows < 16 blocks a wave: each row split over 5 blocks th...
    const int thread = threadIdx.x;
    const int tx = thread % 512;
    const int ty = thread / 512 % 1;
    const int to = thread / 512;
    const int first = blockIdx.x;
    if (first < 20) {
      const int task = first;
      const int next_turn = 0;
      const int outer = ((task) / 5);
      const int col_tile = ((task) % 5);
      {
        const int k = 0;
        #pragma unroll
        for (int l = 0; l < 5; ++l) {
          const int col = l * 2048 + tx * 4 + col_tile * 10240;
          if (col < 50000) {
            const int at_0 = outer * 50000 + col;
            copy_async(&shared_vec<float, 4>(x_1_now_0, (next_turn * 2560 + k * 2560 + l * 512 + thread) * 4), p_x_1 + (at_0));
          }
        }
      }
    }
    copy_commit();
    int next_turn = 0;
    for (int task = first; task < 20; task += gridDim.x) {
      const int turn = next_turn;
      next_turn = turn == 1 ? 0 : turn + 1;
      const int outer = ((task) / 5);
      const int col_tile = ((task) % 5);
      if (const int next = task + gridDim.x; next < 20) {
        const int task = next;
        const int outer = ((task) / 5);
        const int col_tile = ((task) % 5);
        {
          const int k = 0;
          #pragma unroll
          for (int l = 0; l < 5; ++l) {
            const int col = l * 2048 + tx * 4 + col_tile * 10240;
            if (col < 50000) {
              const int at_0 = outer * 50000 + col;
              copy_async(&shared_vec<float, 4>(x_1_now_0, (next_turn * 2560 + k * 2560 + l * 512 + thread) * 4), p_x_1 + (at_0));
            }
          }
        }
      }
      copy_commit();
      copy_wait<1>();
      Reduce0::State reduce_max_7_exponentials_state_0[1];
      #pragma unroll
      for (int i = 0; i < 1; ++i) reduce_max_7_exponentials_state_0[i] = Reduce0::identity();
      {
        const int k = 0;
        #pragma unroll
        for (int l = 0; l < 5; ++l) {
          const int col = l * 2048 + tx * 4 + col_tile * 10240;
          if (col < 50000) {
            const int at_0__1 = outer * 50000 + col;
            const Vec<float, 4> x_1_v_0 = shared_vec<float, 4>(x_1_now_0, (turn * 2560 + k * 2560 + l * 512 + thread) * 4);
            float reduce_max_7_exponentials_state_0_batch_0[4];
            #pragma unroll
            for (int lane = 0; lane < 4; ++lane) {
              const float x_1 = load_as<float>(x_1_v_0.v[lane]);
              reduce_max_7_exponentials_state_0_batch_0[lane] = x_1;
            }
            reduce_max_7_exponentials_state_0[0] = Reduce0::combine(reduce_max_7_exponentials_state_0[0], exponentials_of<Reduce0>(reduce_max_7_exponentials_state_0_batch_0));
          }
        }
      }
      reduce_warps<Reduce0>(reduce_max_7_exponentials_state_0, exchange_0_0);
      __syncthreads();
      combine_warps<Reduce0, 512, true>(reduce_max_7_exponentials_state_0, exchange_0_0);
      if (tx < 1) {
        p_reduce_max_7_exponentials_partial0_0[col_tile * 4 + outer] = store_as<float>(reduce_max_7_exponentials_state_0[0].f0);
        p_reduce_max_7_exponentials_partial1_0[col_tile * 4 + outer] = store_as<float>(reduce_max_7_exponentials_state_0[0].f1);
      }
      astitch_team_barrier(barrier, 5);  // %reduce_max.7.exponentials: 5 blocks have a part each
      Reduce0::State reduce_max_7_exponentials_state_0__1[1];
      #pragma unroll
      for (int i = 0; i < 1; ++i) reduce_max_7_exponentials_state_0__1[i] = Reduce0::identity();
      {
        const int turn_0 = 0;
        const int part_0 = turn_0 * 32 + ((thread) % 32);
        if (part_0 < 5) {
          reduce_max_7_exponentials_state_0__1[0] = Reduce0::combine(reduce_max_7_exponentials_state_0__1[0], Reduce0::State{load_as<float>(p_reduce_max_7_exponentials_partial0_0[part_0 * 4 + outer]), load_as<float>(p_reduce_max_7_exponentials_partial1_0[part_0 * 4 + outer])});
        }
      }
      reduce_lanes<Reduce0, 32, 1>(reduce_max_7_exponentials_state_0__1);
      const float reduce_max_7_get_tuple_element_0 = reduce_max_7_exponentials_state_0__1[0].f0;
      const float reduce_sum_7_get_tuple_element_0 = reduce_max_7_exponentials_state_0__1[0].f1;
      const float reduce_sum_7_subtract_0 = hlo_subtract(reduce_max_7_get_tuple_element_0, reduce_max_7_get_tuple_element_0);
      const float reduce_sum_7_exponential_0 = hlo_exp(reduce_sum_7_subtract_0);
      const float reduce_sum_7_multiply_0 = hlo_multiply(reduce_sum_7_get_tuple_element_0, reduce_sum_7_exponential_0);
      {
        const int k = 0;
        #pragma unroll
        for (int l = 0; l < 5; ++l) {
          const int col = l * 2048 + tx * 4 + col_tile * 10240;
          if (col < 50000) {
            const int at_0__2 = outer * 50000 + col;
            const Vec<float, 4> x_1_v_0__1 = shared_vec<float, 4>(x_1_now_0, (turn * 2560 + k * 2560 + l * 512 + thread) * 4);
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
      __syncthreads();  // the next task writes the shared memory that this one still reads
    }
  }
}
