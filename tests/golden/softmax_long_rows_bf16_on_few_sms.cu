#include "astitch.cuh"
// stitch_0: grid 16 x 512 threads, 61568 B shared
//   jit(softmax_long_rows_bf16)/convert_element_type
//   jit(softmax_long_rows_bf16)/reduce_sum
//   jit(softmax_long_rows_bf16)/reduce_max
//   jit(softmax_long_rows_bf16)/sub
//   jit(softmax_long_rows_bf16)/exp
//   jit(softmax_long_rows_bf16)/div
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
    const bf16* __restrict__ p_x_1,
    bf16* __restrict__ p_convert_element_type_3,
    float* p_reduce_max_7_exponentials_partial0_0,
    float* p_reduce_max_7_exponentials_partial1_0,
    unsigned int* barrier) {
  ASTITCH_SHARED_ARENA(61568);
  ASTITCH_SHARED(bf16, x_1_now_0, 0, 30720);
  ASTITCH_SHARED(Reduce0::State, exchange_0_0, 61440, 16);
  {  // loop 0: outer 6 / 1 threads, row 1 / 1 threads x 1, col 40004 / 512 threads x 5 x 4; 24 tasks; row-reduce, 6 rows < 16 blocks a wave: each row split over 4 blocks th...
    const int thread = threadIdx.x;
    const int tx = thread % 512;
    const int ty = thread / 512 % 1;
    const int to = thread / 512;
    const int first = blockIdx.x;
    if (first < 24) {
      const int task = first;
      const int next_turn = 0;
      const int outer = ((task) / 4);
      const int col_tile = ((task) % 4);
      {
        const int k = 0;
        #pragma unroll
        for (int l = 0; l < 5; ++l) {
          const int col = l * 2048 + tx * 4 + col_tile * 10240;
          if (col < 40004) {
            const int at_0 = outer * 40004 + col;
            copy_async(&shared_vec<bf16, 4>(x_1_now_0, (next_turn * 2560 + k * 2560 + l * 512 + thread) * 4), p_x_1 + (at_0));
          }
        }
      }
    }
    copy_commit();
    int next_turn = 0;
    unsigned half = 1, ticket = 0, last_ticket = 0;
    for (int task = first; task < 24 + gridDim.x; task += gridDim.x) {
      const int turn = next_turn;
      next_turn = turn == 2 ? 0 : turn + 1;
      half ^= 1;
      last_ticket = ticket;
      if (task < 24) {
        const int outer = ((task) / 4);
        const int col_tile = ((task) % 4);
        if (const int next = task + gridDim.x; next < 24) {
          const int task = next;
          const int outer = ((task) / 4);
          const int col_tile = ((task) % 4);
          {
            const int k = 0;
            #pragma unroll
            for (int l = 0; l < 5; ++l) {
              const int col = l * 2048 + tx * 4 + col_tile * 10240;
              if (col < 40004) {
                const int at_0 = outer * 40004 + col;
                copy_async(&shared_vec<bf16, 4>(x_1_now_0, (next_turn * 2560 + k * 2560 + l * 512 + thread) * 4), p_x_1 + (at_0));
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
            if (col < 40004) {
              const int at_0__1 = outer * 40004 + col;
              const Vec<bf16, 4> x_1_v_0 = shared_vec<bf16, 4>(x_1_now_0, (turn * 2560 + k * 2560 + l * 512 + thread) * 4);
              float reduce_max_7_exponentials_state_0_batch_0[4];
              #pragma unroll
              for (int lane = 0; lane < 4; ++lane) {
                const float x_1 = load_as<float>(x_1_v_0.v[lane]);
                const float convert_element_type_2 = hlo_convert<float, bf16>(x_1);
                reduce_max_7_exponentials_state_0_batch_0[lane] = convert_element_type_2;
              }
              reduce_max_7_exponentials_state_0[0] = Reduce0::combine(reduce_max_7_exponentials_state_0[0], exponentials_of<Reduce0>(reduce_max_7_exponentials_state_0_batch_0));
            }
          }
        }
        reduce_warps<Reduce0>(reduce_max_7_exponentials_state_0, exchange_0_0);
        __syncthreads();
        combine_warps<Reduce0, 512, true>(reduce_max_7_exponentials_state_0, exchange_0_0);
        if (tx < 1) {
          p_reduce_max_7_exponentials_partial0_0[col_tile * 6 + outer] = store_as<float>(reduce_max_7_exponentials_state_0[0].f0);
          p_reduce_max_7_exponentials_partial1_0[col_tile * 6 + outer] = store_as<float>(reduce_max_7_exponentials_state_0[0].f1);
        }
        ticket = astitch_team_arrive(barrier, 4, half);  // %reduce_max.7.exponentials: 4 blocks have a part each
      }
      if (task != first) {
        const int last_task = task - gridDim.x;
        const int last_turn = turn == 0 ? 2 : turn - 1;
        {
          const int task = last_task;
          const int turn = last_turn;
          const int outer = ((task) / 4);
          const int col_tile = ((task) % 4);
          astitch_team_wait(barrier, 4, half ^ 1, last_ticket);  // for the parts of all blocks
          Reduce0::State reduce_max_7_exponentials_state_0__1[1];
          #pragma unroll
          for (int i = 0; i < 1; ++i) reduce_max_7_exponentials_state_0__1[i] = Reduce0::identity();
          {
            const int turn_0 = 0;
            const int part_0 = turn_0 * 32 + ((thread) % 32);
            if (part_0 < 4) {
              reduce_max_7_exponentials_state_0__1[0] = Reduce0::combine(reduce_max_7_exponentials_state_0__1[0], Reduce0::State{load_as<float>(p_reduce_max_7_exponentials_partial0_0[part_0 * 6 + outer]), load_as<float>(p_reduce_max_7_exponentials_partial1_0[part_0 * 6 + outer])});
            }
          }
          reduce_lanes<Reduce0, 32, 1>(reduce_max_7_exponentials_state_0__1);
          const float reduce_max_7_get_tuple_element_0 = reduce_max_7_exponentials_state_0__1[0].f0;
          const float reduce_sum_7_get_tuple_element_0 = reduce_max_7_exponentials_state_0__1[0].f1;
          const float reduce_sum_7_subtract_0 = hlo_subtract(reduce_max_7_get_tuple_element_0, reduce_max_7_get_tuple_element_0);
          const float reduce_sum_7_exponential_0 = narrow_exp<f16>(reduce_sum_7_subtract_0);
          const float reduce_sum_7_multiply_0 = hlo_multiply(reduce_sum_7_get_tuple_element_0, reduce_sum_7_exponential_0);
          {
            const int k = 0;
            #pragma unroll
            for (int l = 0; l < 5; ++l) {
              const int col = l * 2048 + tx * 4 + col_tile * 10240;
              if (col < 40004) {
                const int at_0__2 = outer * 40004 + col;
                const Vec<bf16, 4> x_1_v_0__1 = shared_vec<bf16, 4>(x_1_now_0, (turn * 2560 + k * 2560 + l * 512 + thread) * 4);
                Vec<bf16, 4> convert_element_type_3_w_0;
                #pragma unroll
                for (int lane = 0; lane < 4; ++lane) {
                  const float x_1__1 = load_as<float>(x_1_v_0__1.v[lane]);
                  const float convert_element_type_2__1 = hlo_convert<float, bf16>(x_1__1);
                  const float sub_7 = hlo_subtract(convert_element_type_2__1, reduce_max_7_get_tuple_element_0);
                  const float exp_1 = narrow_exp<f16>(sub_7);
                  const float div_7 = hlo_divide_shared(exp_1, reduce_sum_7_multiply_0);
                  const float convert_element_type_3 = hlo_convert<bf16, float>(div_7);
                  convert_element_type_3_w_0.v[lane] = store_exact<bf16>(convert_element_type_3);
                }
                *reinterpret_cast<Vec<bf16, 4>*>(p_convert_element_type_3 + (at_0__2)) = convert_element_type_3_w_0;
              }
            }
          }
        }
      }
    }
  }
}
