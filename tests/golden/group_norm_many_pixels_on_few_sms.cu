#include "astitch.cuh"
// stitch_0: grid 28 x 512 threads, 79872 B shared
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
  struct State { float f0; float f1; float f2; };
  static __device__ __forceinline__ State identity() { return State{0.0f, 0.0f, 0.0f}; }
  static __device__ __forceinline__ State combine(const State a, const State b) {
    return join_moments(a, b);
  }
  static __device__ __forceinline__ State take(const State s, int lane) {
    return State{value_of_lane(s.f0, lane), value_of_lane(s.f1, lane), value_of_lane(s.f2, lane)};
  }
  static __device__ __forceinline__ State shuffle(const State s, int mask) {
    return State{shuffle_value(s.f0, mask), shuffle_value(s.f1, mask), shuffle_value(s.f2, mask)};
  }
};
extern "C" __global__ void __launch_bounds__(512, 2) stitch_0(
    const bf16* __restrict__ p_x_1,
    bf16* __restrict__ p_convert_element_type_3,
    float* p_reduce_sum_14_moments_partial0_0,
    float* p_reduce_sum_14_moments_partial1_0,
    float* p_reduce_sum_14_moments_partial2_0,
    unsigned int* barrier) {
  ASTITCH_SHARED_ARENA(79872);
  ASTITCH_SHARED(bf16, x_1_now_0, 0, 36864);
  ASTITCH_SHARED(Reduce0::State, exchange_0_0, 73728, 512);
  {  // loop 0: outer 6x8 / 8 threads, row 32x40 / 64 threads x 3, col 8 / 1 threads x 1 x 8; 42 tasks; mixed reduce: 64 rows x 8 neighbours x 1 threads a block, rows split ...
    const int thread = threadIdx.x;
    const int tx = thread % 1;
    const int to = thread / 1 % 8;
    const int ty = thread / 8;
    const int first = blockIdx.x;
    if (first < 42) {
      const int task = first;
      const int next_turn = 0;
      const int outer = ((task) / 7) * 8 + to;
      const int row_tile = ((task) % 7);
      const int outer_1 = ((outer) % 8);
      const int outer_0 = ((outer) / 8);
      #pragma unroll
      for (int k = 0; k < 3; ++k) {
        const int row = k * 64 + ty + row_tile * 192;
        if (row < 1280) {
          {
            const int l = 0;
            const int col = l * 8 + tx * 8;
            const int at_0 = outer_1 * 8 + outer_0 * 81920 + row * 64 + col;
            copy_async(&shared_vec<bf16, 8>(x_1_now_0, (next_turn * 1536 + k * 512 + l * 512 + thread) * 8), p_x_1 + (at_0));
          }
        }
      }
    }
    copy_commit();
    int next_turn = 0;
    unsigned half = 1, ticket = 0, last_ticket = 0;
    for (int task = first; task < 42 + gridDim.x; task += gridDim.x) {
      const int turn = next_turn;
      next_turn = turn == 2 ? 0 : turn + 1;
      half ^= 1;
      last_ticket = ticket;
      if (task < 42) {
        const int outer = ((task) / 7) * 8 + to;
        const int row_tile = ((task) % 7);
        if (const int next = task + gridDim.x; next < 42) {
          const int task = next;
          const int outer = ((task) / 7) * 8 + to;
          const int row_tile = ((task) % 7);
          const int outer_1 = ((outer) % 8);
          const int outer_0 = ((outer) / 8);
          #pragma unroll
          for (int k = 0; k < 3; ++k) {
            const int row = k * 64 + ty + row_tile * 192;
            if (row < 1280) {
              {
                const int l = 0;
                const int col = l * 8 + tx * 8;
                const int at_0 = outer_1 * 8 + outer_0 * 81920 + row * 64 + col;
                copy_async(&shared_vec<bf16, 8>(x_1_now_0, (next_turn * 1536 + k * 512 + l * 512 + thread) * 8), p_x_1 + (at_0));
              }
            }
          }
        }
        copy_commit();
        copy_wait<1>();
        Reduce0::State reduce_sum_14_moments_state_0[1];
        #pragma unroll
        for (int i = 0; i < 1; ++i) reduce_sum_14_moments_state_0[i] = Reduce0::identity();
        const int outer_1__1 = ((outer) % 8);
        const int outer_0__1 = ((outer) / 8);
        #pragma unroll
        for (int k = 0; k < 3; ++k) {
          const int row = k * 64 + ty + row_tile * 192;
          if (row < 1280) {
            {
              const int l = 0;
              const int col = l * 8 + tx * 8;
              const int at_0__1 = outer_1__1 * 8 + outer_0__1 * 81920 + row * 64 + col;
              const Vec<bf16, 8> x_1_v_0 = shared_vec<bf16, 8>(x_1_now_0, (turn * 1536 + k * 512 + l * 512 + thread) * 8);
              float reduce_sum_14_moments_state_0_batch_0[8];
              #pragma unroll
              for (int lane = 0; lane < 8; ++lane) {
                const float x_1 = load_as<float>(x_1_v_0.v[lane]);
                const float convert_element_type_2 = hlo_convert<float, bf16>(x_1);
                reduce_sum_14_moments_state_0_batch_0[lane] = convert_element_type_2;
              }
              reduce_sum_14_moments_state_0[0] = Reduce0::combine(reduce_sum_14_moments_state_0[0], moments_of<Reduce0>(reduce_sum_14_moments_state_0_batch_0));
            }
          }
        }
        reduce_strided<Reduce0, 64, 8, 512, 4, false>(reduce_sum_14_moments_state_0, exchange_0_0);
        if (ty < 1) {
          p_reduce_sum_14_moments_partial0_0[row_tile * 48 + outer] = store_as<float>(reduce_sum_14_moments_state_0[0].f0);
          p_reduce_sum_14_moments_partial1_0[row_tile * 48 + outer] = store_as<float>(reduce_sum_14_moments_state_0[0].f1);
          p_reduce_sum_14_moments_partial2_0[row_tile * 48 + outer] = store_as<float>(reduce_sum_14_moments_state_0[0].f2);
        }
        ticket = astitch_team_arrive(barrier, 7, half);  // %reduce_sum.14.moments: 7 blocks have a part each
      }
      if (task != first) {
        const int last_task = task - gridDim.x;
        const int last_turn = turn == 0 ? 2 : turn - 1;
        {
          const int task = last_task;
          const int turn = last_turn;
          const int outer = ((task) / 7) * 8 + to;
          const int row_tile = ((task) % 7);
          astitch_team_wait(barrier, 7, half ^ 1, last_ticket);  // for the parts of all blocks
          Reduce0::State reduce_sum_14_moments_state_0__1[1];
          #pragma unroll
          for (int i = 0; i < 1; ++i) reduce_sum_14_moments_state_0__1[i] = Reduce0::identity();
          #pragma unroll
          for (int turn_0 = 0; turn_0 < 7; ++turn_0) {
            const int part_0 = turn_0;
            reduce_sum_14_moments_state_0__1[0] = Reduce0::combine(reduce_sum_14_moments_state_0__1[0], Reduce0::State{load_as<float>(p_reduce_sum_14_moments_partial0_0[part_0 * 48 + outer]), load_as<float>(p_reduce_sum_14_moments_partial1_0[part_0 * 48 + outer]), load_as<float>(p_reduce_sum_14_moments_partial2_0[part_0 * 48 + outer])});
          }
          reduce_lanes<Reduce0, 1, 1>(reduce_sum_14_moments_state_0__1);
          const float reduce_sum_14_get_tuple_element_0 = reduce_sum_14_moments_state_0__1[0].f1;
          const float reduce_sum_14_multiply_0 = hlo_multiply(reduce_sum_14_get_tuple_element_0, 10240.0f);
          const float div_2_divide_0 = hlo_divide_shared(reduce_sum_14_multiply_0, 10240.0f);
          const float reduce_sum_15_get_tuple_element_0 = reduce_sum_14_moments_state_0__1[0].f2;
          const float div_3_divide_0 = hlo_divide_shared(reduce_sum_15_get_tuple_element_0, 10240.0f);
          const float add_3_add_0 = hlo_add(div_3_divide_0, 1e-05f);
          const float rsqrt_1_rsqrt_0 = hlo_rsqrt(add_3_add_0);
          const int outer_1__2 = ((outer) % 8);
          const int outer_0__2 = ((outer) / 8);
          #pragma unroll
          for (int k = 0; k < 3; ++k) {
            const int row = k * 64 + ty + row_tile * 192;
            if (row < 1280) {
              {
                const int l = 0;
                const int col = l * 8 + tx * 8;
                const int at_0__2 = outer_1__2 * 8 + outer_0__2 * 81920 + row * 64 + col;
                const Vec<bf16, 8> x_1_v_0__1 = shared_vec<bf16, 8>(x_1_now_0, (turn * 1536 + k * 512 + l * 512 + thread) * 8);
                Vec<bf16, 8> convert_element_type_3_w_0;
                #pragma unroll
                for (int lane = 0; lane < 8; ++lane) {
                  const float x_1__1 = load_as<float>(x_1_v_0__1.v[lane]);
                  const float convert_element_type_2__1 = hlo_convert<float, bf16>(x_1__1);
                  const float sub_15 = hlo_subtract(convert_element_type_2__1, div_2_divide_0);
                  const float mul_7 = hlo_multiply(sub_15, rsqrt_1_rsqrt_0);
                  const float convert_element_type_3 = hlo_convert<bf16, float>(mul_7);
                  convert_element_type_3_w_0.v[lane] = store_exact<bf16>(convert_element_type_3);
                }
                *reinterpret_cast<Vec<bf16, 8>*>(p_convert_element_type_3 + (at_0__2)) = convert_element_type_3_w_0;
              }
            }
          }
        }
      }
    }
  }
}
