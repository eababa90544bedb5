#include "astitch.cuh"
// stitch_0: grid 66 x 512 threads, 128 B shared
//   reduce_max
//   sub
//   exp
//   reduce_sum
//   log
//   lt
//   add
//   select_n
//   and 9 more
struct Reduce0 {
  struct State { float f0; };
  static __device__ __forceinline__ State identity() { return State{same_bits<float>(0xff800000u)}; }
  static __device__ __forceinline__ State combine(const State a, const State b) {
    const float v2 = hlo_maximum(a.f0, b.f0);
    return State{v2};
  }
  static __device__ __forceinline__ State shuffle(const State s, int mask) {
    return State{shuffle_value(s.f0, mask)};
  }
};
struct Reduce1 {
  struct State { float f0; };
  static __device__ __forceinline__ State identity() { return State{0.0f}; }
  static __device__ __forceinline__ State combine(const State a, const State b) {
    const float v2 = hlo_add(a.f0, b.f0);
    return State{v2};
  }
  static __device__ __forceinline__ State shuffle(const State s, int mask) {
    return State{shuffle_value(s.f0, mask)};
  }
};
extern "C" __global__ void __launch_bounds__(512, 2) stitch_0(
    const float* __restrict__ p_logits_1,
    const int* __restrict__ p_labels_1,
    float* __restrict__ p_exp_1,
    float* __restrict__ p_reduce_sum_7,
    int* p_select_n_2_select_0,
    float* __restrict__ p_broadcast_in_dim_12,
    float* __restrict__ p_broadcast_in_dim_9,
    float* __restrict__ p_reduce_sum_31,
    float* p_reduce_max_7,
    float* p_log_1_log_0,
    unsigned int* barrier) {
  ASTITCH_SHARED_ARENA(128);
  ASTITCH_SHARED(Reduce0::State, exchange_0_0, 0, 16);
  ASTITCH_SHARED(Reduce1::State, exchange_1_1, 64, 16);
  {  // loop 0: outer 64 / 2 threads, row 1 / 1 threads x 1, col 1000 / 256 threads x 1 x 4; 32 tasks; row-reduce: 2 rows a block, 256 threads a row
    const int thread = threadIdx.x;
    const int tx = thread % 256;
    const int ty = thread / 256 % 1;
    const int to = thread / 256;
    const int first = blockIdx.x;
    float logits_1_kept_0[4];
    if (first < 32) {
      const int task = first;
      const int outer = task * 2 + to;
      Reduce0::State reduce_max_7_state_0[1];
      #pragma unroll
      for (int i = 0; i < 1; ++i) reduce_max_7_state_0[i] = Reduce0::identity();
      {
        const int k = 0;
        {
          const int l = 0;
          const int col = l * 1024 + tx * 4;
          if (col < 1000) {
            const int at_0 = outer * 1000 + col;
            const Vec<float, 4> logits_1_v_0 = *reinterpret_cast<const Vec<float, 4>*>(p_logits_1 + (at_0));
            #pragma unroll
            for (int lane = 0; lane < 4; ++lane) {
              const float logits_1 = load_as<float>(logits_1_v_0.v[lane]);
              logits_1_kept_0[k * 4 + l * 4 + lane] = store_as<float>(logits_1);
              reduce_max_7_state_0[0] = Reduce0::combine(reduce_max_7_state_0[0], Reduce0::State{logits_1});
            }
          }
        }
      }
      reduce_consecutive<Reduce0, 256>(reduce_max_7_state_0, exchange_0_0);
      const float reduce_max_7 = reduce_max_7_state_0[0].f0;
      if (tx < 1) {
        p_reduce_max_7[outer] = store_as<float>(reduce_max_7);
      }
      Reduce1::State reduce_sum_7_state_0[1];
      #pragma unroll
      for (int i = 0; i < 1; ++i) reduce_sum_7_state_0[i] = Reduce1::identity();
      const float reduce_max_7__1 = reduce_max_7_state_0[0].f0;
      {
        const int k = 0;
        {
          const int l = 0;
          const int col = l * 1024 + tx * 4;
          if (col < 1000) {
            const int at_0__1 = outer * 1000 + col;
            Vec<float, 4> exp_1_w_0;
            #pragma unroll
            for (int lane = 0; lane < 4; ++lane) {
              const float logits_1__1 = load_as<float>(logits_1_kept_0[k * 4 + l * 4 + lane]);
              const float sub_11 = hlo_subtract(logits_1__1, reduce_max_7__1);
              const float exp_1 = hlo_exp(sub_11);
              exp_1_w_0.v[lane] = store_as<float>(exp_1);
              reduce_sum_7_state_0[0] = Reduce1::combine(reduce_sum_7_state_0[0], Reduce1::State{exp_1});
            }
            *reinterpret_cast<Vec<float, 4>*>(p_exp_1 + (at_0__1)) = exp_1_w_0;
          }
        }
      }
      reduce_consecutive<Reduce1, 256>(reduce_sum_7_state_0, exchange_1_1);
      const float reduce_sum_7 = reduce_sum_7_state_0[0].f0;
      if (tx < 1) {
        p_reduce_sum_7[outer] = store_as<float>(reduce_sum_7);
      }
      const float reduce_sum_7__1 = reduce_sum_7_state_0[0].f0;
      const float log_1_log_0 = hlo_log(reduce_sum_7__1);
      if (tx < 1) {
        p_log_1_log_0[outer] = store_as<float>(log_1_log_0);
      }
    }
  }
  {  // loop 1: outer 1 / 1 threads, row 1 / 1 threads x 1, col 64 / 512 threads x 1 x 4; 1 tasks; element-wise: flat tiles
    const int thread = threadIdx.x;
    const int tx = thread % 512;
    const int ty = thread / 512 % 1;
    const int to = thread / 512;
    const int first = (blockIdx.x + gridDim.x - 32) % gridDim.x;
    if (first < 1) {
      const int task = first;
      {
        const int k = 0;
        {
          const int l = 0;
          const int col = l * 2048 + tx * 4;
          if (col < 64) {
            const Vec<int, 4> labels_1_v_0 = *reinterpret_cast<const Vec<int, 4>*>(p_labels_1 + (col));
            Vec<int, 4> select_n_2_select_w_0;
            #pragma unroll
            for (int lane = 0; lane < 4; ++lane) {
              const int labels_1 = load_as<int>(labels_1_v_0.v[lane]);
              const bool lt_3_compare_0 = hlo_compare_lt(labels_1, 0);
              const int add_3_add_0 = hlo_add(labels_1, 1000);
              const int select_n_2_select_0 = (lt_3_compare_0 ? add_3_add_0 : labels_1);
              select_n_2_select_w_0.v[lane] = store_as<int>(select_n_2_select_0);
            }
            *reinterpret_cast<Vec<int, 4>*>(p_select_n_2_select_0 + (col)) = select_n_2_select_w_0;
          }
        }
      }
    }
  }
  {  // loop 2: outer 1 / 1 threads, row 1 / 1 threads x 1, col 64 / 512 threads x 1 x 4; 1 tasks; element-wise: flat tiles
    const int thread = threadIdx.x;
    const int tx = thread % 512;
    const int ty = thread / 512 % 1;
    const int to = thread / 512;
    const int first = (blockIdx.x + gridDim.x - 33) % gridDim.x;
    if (first < 1) {
      const int task = first;
      {
        const int k = 0;
        {
          const int l = 0;
          const int col = l * 2048 + tx * 4;
          if (col < 64) {
            Vec<float, 4> broadcast_in_dim_12_w_0;
            #pragma unroll
            for (int lane = 0; lane < 4; ++lane) {
              broadcast_in_dim_12_w_0.v[lane] = store_as<float>(-0.015625f);
            }
            *reinterpret_cast<Vec<float, 4>*>(p_broadcast_in_dim_12 + (col)) = broadcast_in_dim_12_w_0;
          }
        }
      }
    }
  }
  {  // loop 3: outer 1 / 1 threads, row 1 / 1 threads x 1, col 64x1000 / 512 threads x 1 x 4; 32 tasks; element-wise: flat tiles
    const int thread = threadIdx.x;
    const int tx = thread % 512;
    const int ty = thread / 512 % 1;
    const int to = thread / 512;
    const int first = (blockIdx.x + gridDim.x - 34) % gridDim.x;
    if (first < 32) {
      const int task = first;
      const int col_tile = task;
      {
        const int k = 0;
        {
          const int l = 0;
          const int col = l * 2048 + tx * 4 + col_tile * 2048;
          if (col < 64000) {
            Vec<float, 4> broadcast_in_dim_9_w_0;
            #pragma unroll
            for (int lane = 0; lane < 4; ++lane) {
              broadcast_in_dim_9_w_0.v[lane] = store_as<float>(0.0f);
            }
            *reinterpret_cast<Vec<float, 4>*>(p_broadcast_in_dim_9 + (col)) = broadcast_in_dim_9_w_0;
          }
        }
      }
    }
  }
  ASTITCH_GLOBAL_BARRIER(barrier);  // Global: %reduce_max.7, %log.1.log, %select_n.2.select before level 1
  {  // loop 4: outer 1 / 32 threads, row 1 / 1 threads x 1, col 64 / 16 threads x 1 x 4; 1 tasks; row-reduce: 32 rows a block, 16 threads a row
    const int thread = threadIdx.x;
    const int tx = thread % 16;
    const int ty = thread / 16 % 1;
    const int to = thread / 16;
    const int first = blockIdx.x;
    if (first < 1) {
      const int task = first;
      Reduce1::State reduce_sum_31_state_0[1];
      #pragma unroll
      for (int i = 0; i < 1; ++i) reduce_sum_31_state_0[i] = Reduce1::identity();
      {
        const int k = 0;
        {
          const int l = 0;
          const int col = l * 64 + tx * 4;
          const Vec<int, 4> select_n_2_select_v_0 = *reinterpret_cast<const Vec<int, 4>*>(p_select_n_2_select_0 + (col));
          const Vec<float, 4> reduce_max_7_v_0 = *reinterpret_cast<const Vec<float, 4>*>(p_reduce_max_7 + (col));
          const Vec<float, 4> log_1_log_v_0 = *reinterpret_cast<const Vec<float, 4>*>(p_log_1_log_0 + (col));
          #pragma unroll
          for (int lane = 0; lane < 4; ++lane) {
            const int select_n_2_select_0__1 = load_as<int>(select_n_2_select_v_0.v[lane]);
            const bool ge_3_compare_0 = hlo_compare_ge(select_n_2_select_0__1, 0);
            const bool le_3_compare_0 = hlo_compare_le(select_n_2_select_0__1, 999);
            const bool and_1_and_0 = hlo_and(ge_3_compare_0, le_3_compare_0);
            const int start_0 = (int)hlo_clamp((long long)0, (long long)select_n_2_select_0__1, (long long)999);
            const int at_0__2 = start_0 + col * 1000;
            const float logits_1__2 = load_as<float>(p_logits_1[at_0__2 + lane * 1000]);
            const float reduce_max_7__2 = load_as<float>(reduce_max_7_v_0.v[lane]);
            const float sub_11__1 = hlo_subtract(logits_1__2, reduce_max_7__2);
            const float log_1_log_0__1 = load_as<float>(log_1_log_v_0.v[lane]);
            const float sub_15 = hlo_subtract(sub_11__1, log_1_log_0__1);
            const float select_n_3 = (and_1_and_0 ? sub_15 : same_bits<float>(0x7fc00000u));
            if (to < 1) {
              reduce_sum_31_state_0[0] = Reduce1::combine(reduce_sum_31_state_0[0], Reduce1::State{select_n_3});
            }
          }
        }
      }
      reduce_lanes<Reduce1, 16, 1>(reduce_sum_31_state_0);
      const float reduce_sum_31 = reduce_sum_31_state_0[0].f0;
      if (to < 1 && tx < 1) {
        p_reduce_sum_31[0] = store_as<float>(reduce_sum_31);
      }
    }
  }
}

#include "astitch.cuh"
// stitch_1: grid 65 x 256 threads, 32 B shared
//   jit(cross_entropy_gather)/jvp()/div
//   jit(cross_entropy_gather)/jvp()/neg
//   neg
//   reduce_sum
//   div
//   broadcast_in_dim
//   mul
//   add_any
struct Reduce0 {
  struct State { float f0; };
  static __device__ __forceinline__ State identity() { return State{0.0f}; }
  static __device__ __forceinline__ State combine(const State a, const State b) {
    const float v2 = hlo_add(a.f0, b.f0);
    return State{v2};
  }
  static __device__ __forceinline__ State shuffle(const State s, int mask) {
    return State{shuffle_value(s.f0, mask)};
  }
};
extern "C" __global__ void __launch_bounds__(256) stitch_1(
    const float* __restrict__ p_reduce_sum_31,
    const float* __restrict__ p_scatter_add_5,
    const float* __restrict__ p_reduce_sum_7,
    const float* __restrict__ p_exp_1,
    float* __restrict__ p_neg_3,
    float* __restrict__ p_add_any_1) {
  ASTITCH_SHARED_ARENA(32);
  ASTITCH_SHARED(Reduce0::State, exchange_0_0, 0, 8);
  {  // loop 0: outer 1 / 1 threads, row 1 / 1 threads x 1, col 1 / 256 threads x 1 x 1; 1 tasks; element-wise: flat tiles
    const int thread = threadIdx.x;
    const int tx = thread % 256;
    const int ty = thread / 256 % 1;
    const int to = thread / 256;
    const int first = blockIdx.x;
    const float reduce_sum_31 = load_as<float>(p_reduce_sum_31[0]);
    const float div_3 = hlo_divide(reduce_sum_31, 64.0f);
    const float neg_3 = hlo_negate(div_3);
    if (first < 1) {
      const int task = first;
      if (tx < 1) {
        p_neg_3[0] = store_as<float>(neg_3);
      }
    }
  }
  {  // loop 1: outer 64 / 1 threads, row 1 / 1 threads x 1, col 1000 / 256 threads x 1 x 4; 64 tasks; row-reduce: a block a row
    const int thread = threadIdx.x;
    const int tx = thread % 256;
    const int ty = thread / 256 % 1;
    const int to = thread / 256;
    const int first = (blockIdx.x + gridDim.x - 1) % gridDim.x;
    float scatter_add_5_kept_0[4];
    if (first < 64) {
      const int task = first;
      const int outer = task;
      Reduce0::State reduce_sum_29_state_0[1];
      #pragma unroll
      for (int i = 0; i < 1; ++i) reduce_sum_29_state_0[i] = Reduce0::identity();
      {
        const int k = 0;
        {
          const int l = 0;
          const int col = l * 1024 + tx * 4;
          if (col < 1000) {
            const int at_0 = outer * 1000 + col;
            const Vec<float, 4> scatter_add_5_v_0 = *reinterpret_cast<const Vec<float, 4>*>(p_scatter_add_5 + (at_0));
            #pragma unroll
            for (int lane = 0; lane < 4; ++lane) {
              const float scatter_add_5 = load_as<float>(scatter_add_5_v_0.v[lane]);
              scatter_add_5_kept_0[k * 4 + l * 4 + lane] = store_as<float>(scatter_add_5);
              const float neg_2 = hlo_negate(scatter_add_5);
              reduce_sum_29_state_0[0] = Reduce0::combine(reduce_sum_29_state_0[0], Reduce0::State{neg_2});
            }
          }
        }
      }
      reduce_consecutive<Reduce0, 256>(reduce_sum_29_state_0, exchange_0_0);
      const float reduce_sum_29 = reduce_sum_29_state_0[0].f0;
      const float reduce_sum_7 = load_as<float>(p_reduce_sum_7[outer]);
      const float div_2_divide_0 = hlo_divide(reduce_sum_29, reduce_sum_7);
      const float reduce_sum_30 = hlo_add(0.0f, div_2_divide_0);
      {
        const int k = 0;
        {
          const int l = 0;
          const int col = l * 1024 + tx * 4;
          if (col < 1000) {
            const int at_0__1 = outer * 1000 + col;
            const Vec<float, 4> exp_1_v_0 = *reinterpret_cast<const Vec<float, 4>*>(p_exp_1 + (at_0__1));
            Vec<float, 4> add_any_1_w_0;
            #pragma unroll
            for (int lane = 0; lane < 4; ++lane) {
              const float scatter_add_5__1 = load_as<float>(scatter_add_5_kept_0[k * 4 + l * 4 + lane]);
              const float exp_1 = load_as<float>(exp_1_v_0.v[lane]);
              const float mul_1 = hlo_multiply(reduce_sum_30, exp_1);
              const float add_any_1 = hlo_add(scatter_add_5__1, mul_1);
              add_any_1_w_0.v[lane] = store_as<float>(add_any_1);
            }
            *reinterpret_cast<Vec<float, 4>*>(p_add_any_1 + (at_0__1)) = add_any_1_w_0;
          }
        }
      }
    }
  }
}
