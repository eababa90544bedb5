#include "astitch.cuh"
// stitch_0: grid 32 x 64 threads, 32 B shared
//   slice
//   squeeze
//   iota_2x32_shape
//   add
//   shift_left
//   shift_right_logical
//   or
//   xor
//   and 9 more
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
extern "C" __global__ void __launch_bounds__(64, 1) stitch_0(
    const unsigned int* __restrict__ p_words_1,
    const unsigned int* __restrict__ p_xor_23_reshape_0,
    const float* __restrict__ p_x_1,
    const float* __restrict__ p_residual_1,
    const float* __restrict__ p_gamma_1,
    const float* __restrict__ p_beta_1,
    bool* __restrict__ p_lt_3,
    float* __restrict__ p_add_127) {
  assume_threads<64>();
  ASTITCH_SHARED_ARENA(32);
  ASTITCH_SHARED(Reduce0::State, exchange_0_0, 0, 2);
  ASTITCH_SHARED(Reduce0::State, exchange_0_1, 16, 2);
  {  // loop 0: outer 32 / 1 threads, row 1 / 1 threads x 1, col 256 / 64 threads x 1 x 4; 32 tasks; row-reduce: a block a row
    const int thread = threadIdx.x;
    const int tx = threadIdx.x;
    const int ty = 0;
    const int to = 0;
    const int first = blockIdx.x;
    const unsigned int words_1 = load_as<unsigned int>(p_words_1[0]);
    const unsigned int words_1__1 = load_as<unsigned int>(p_words_1[1]);
    const unsigned int xor_22_xor_0 = hlo_xor(words_1, words_1__1);
    const unsigned int xor_23_reshape_0 = load_as<unsigned int>(p_xor_23_reshape_0[0]);
    const unsigned int xor_23_xor_0 = hlo_xor(xor_22_xor_0, xor_23_reshape_0);
    float add_122_kept_0[4];
    float sub_21_kept_0[4];
    words_of<Vec<float, 4>>::type gamma_1_now_0[1];
    words_of<Vec<float, 4>>::type beta_1_now_0[1];
    {
      const int task = first;
      const int outer = task;
      Reduce0::State reduce_sum_14_state_0[1];
      #pragma unroll
      for (int i = 0; i < 1; ++i) reduce_sum_14_state_0[i] = Reduce0::identity();
      const unsigned long long iota_2x32_shape_13 = hlo_convert<unsigned long long>(outer);
      const unsigned long long iota_2x32_shape_17 = hlo_multiply(iota_2x32_shape_13, 256ull);
      {
        const int k = 0;
        {
          const int l = 0;
          const int col = l * 256 + tx * 4;
          const int at_0 = outer * 256 + col;
          Vec<bool, 4> lt_3_w_0;
          const Vec<float, 4> x_1_v_0 = *reinterpret_cast<const Vec<float, 4>*>(p_x_1 + (at_0));
          const Vec<float, 4> residual_1_v_0 = *reinterpret_cast<const Vec<float, 4>*>(p_residual_1 + (at_0));
          gamma_1_now_0[k + l] = *reinterpret_cast<const words_of<Vec<float, 4>>::type*>(p_gamma_1 + (col));
          beta_1_now_0[k + l] = *reinterpret_cast<const words_of<Vec<float, 4>>::type*>(p_beta_1 + (col));
          #pragma unroll
          for (int lane = 0; lane < 4; ++lane) {
            const unsigned long long iota_2x32_shape_15 = hlo_convert<unsigned long long>(col + lane);
            const unsigned long long iota_2x32_shape_18 = hlo_add(iota_2x32_shape_17, iota_2x32_shape_15);
            const unsigned long long iota_2x32_shape_19 = hlo_shift_right_logical(iota_2x32_shape_18, 32ull);
            const unsigned int iota_2x32_shape_21 = hlo_convert<unsigned int, unsigned long long>(iota_2x32_shape_19);
            const unsigned int add_59 = hlo_add(iota_2x32_shape_21, words_1);
            const unsigned int iota_2x32_shape_20 = hlo_convert<unsigned int, unsigned long long>(iota_2x32_shape_18);
            const unsigned int add_61 = hlo_add(iota_2x32_shape_20, words_1__1);
            const unsigned int add_62 = hlo_add(add_59, add_61);
            const unsigned int shift_left_20 = hlo_shift_left(add_61, 13u);
            const unsigned int shift_right_logical_21 = hlo_shift_right_logical(add_61, 19u);
            const unsigned int or_21 = hlo_or(shift_left_20, shift_right_logical_21);
            const unsigned int xor_24 = hlo_xor(add_62, or_21);
            const unsigned int add_63 = hlo_add(add_62, xor_24);
            const unsigned int shift_left_21 = hlo_shift_left(xor_24, 15u);
            const unsigned int shift_right_logical_22 = hlo_shift_right_logical(xor_24, 17u);
            const unsigned int or_22 = hlo_or(shift_left_21, shift_right_logical_22);
            const unsigned int xor_25 = hlo_xor(add_63, or_22);
            const unsigned int add_64 = hlo_add(add_63, xor_25);
            const unsigned int shift_left_22 = hlo_shift_left(xor_25, 26u);
            const unsigned int shift_right_logical_23 = hlo_shift_right_logical(xor_25, 6u);
            const unsigned int or_23 = hlo_or(shift_left_22, shift_right_logical_23);
            const unsigned int xor_26 = hlo_xor(add_64, or_23);
            const unsigned int add_65 = hlo_add(add_64, xor_26);
            const unsigned int add_67 = hlo_add(add_65, words_1__1);
            const unsigned int shift_left_23 = hlo_shift_left(xor_26, 6u);
            const unsigned int shift_right_logical_24 = hlo_shift_right_logical(xor_26, 26u);
            const unsigned int or_24 = hlo_or(shift_left_23, shift_right_logical_24);
            const unsigned int xor_27 = hlo_xor(add_65, or_24);
            const unsigned int add_69 = hlo_add(xor_27, xor_23_xor_0);
            const unsigned int add_70 = hlo_add(add_69, 1u);
            const unsigned int add_71 = hlo_add(add_67, add_70);
            const unsigned int shift_left_24 = hlo_shift_left(add_70, 17u);
            const unsigned int shift_right_logical_25 = hlo_shift_right_logical(add_70, 15u);
            const unsigned int or_25 = hlo_or(shift_left_24, shift_right_logical_25);
            const unsigned int xor_28 = hlo_xor(add_71, or_25);
            const unsigned int add_72 = hlo_add(add_71, xor_28);
            const unsigned int shift_left_25 = hlo_shift_left(xor_28, 29u);
            const unsigned int shift_right_logical_26 = hlo_shift_right_logical(xor_28, 3u);
            const unsigned int or_26 = hlo_or(shift_left_25, shift_right_logical_26);
            const unsigned int xor_29 = hlo_xor(add_72, or_26);
            const unsigned int add_73 = hlo_add(add_72, xor_29);
            const unsigned int shift_left_26 = hlo_shift_left(xor_29, 16u);
            const unsigned int shift_right_logical_27 = hlo_shift_right_logical(xor_29, 16u);
            const unsigned int or_27 = hlo_or(shift_left_26, shift_right_logical_27);
            const unsigned int xor_30 = hlo_xor(add_73, or_27);
            const unsigned int add_74 = hlo_add(add_73, xor_30);
            const unsigned int add_76 = hlo_add(add_74, xor_23_xor_0);
            const unsigned int shift_left_27 = hlo_shift_left(xor_30, 24u);
            const unsigned int shift_right_logical_28 = hlo_shift_right_logical(xor_30, 8u);
            const unsigned int or_28 = hlo_or(shift_left_27, shift_right_logical_28);
            const unsigned int xor_31 = hlo_xor(add_74, or_28);
            const unsigned int add_78 = hlo_add(xor_31, words_1);
            const unsigned int add_79 = hlo_add(add_78, 2u);
            const unsigned int add_80 = hlo_add(add_76, add_79);
            const unsigned int shift_left_28 = hlo_shift_left(add_79, 13u);
            const unsigned int shift_right_logical_29 = hlo_shift_right_logical(add_79, 19u);
            const unsigned int or_29 = hlo_or(shift_left_28, shift_right_logical_29);
            const unsigned int xor_32 = hlo_xor(add_80, or_29);
            const unsigned int add_81 = hlo_add(add_80, xor_32);
            const unsigned int shift_left_29 = hlo_shift_left(xor_32, 15u);
            const unsigned int shift_right_logical_30 = hlo_shift_right_logical(xor_32, 17u);
            const unsigned int or_30 = hlo_or(shift_left_29, shift_right_logical_30);
            const unsigned int xor_33 = hlo_xor(add_81, or_30);
            const unsigned int add_82 = hlo_add(add_81, xor_33);
            const unsigned int shift_left_30 = hlo_shift_left(xor_33, 26u);
            const unsigned int shift_right_logical_31 = hlo_shift_right_logical(xor_33, 6u);
            const unsigned int or_31 = hlo_or(shift_left_30, shift_right_logical_31);
            const unsigned int xor_34 = hlo_xor(add_82, or_31);
            const unsigned int add_83 = hlo_add(add_82, xor_34);
            const unsigned int add_85 = hlo_add(add_83, words_1);
            const unsigned int shift_left_31 = hlo_shift_left(xor_34, 6u);
            const unsigned int shift_right_logical_32 = hlo_shift_right_logical(xor_34, 26u);
            const unsigned int or_32 = hlo_or(shift_left_31, shift_right_logical_32);
            const unsigned int xor_35 = hlo_xor(add_83, or_32);
            const unsigned int add_87 = hlo_add(xor_35, words_1__1);
            const unsigned int add_88 = hlo_add(add_87, 3u);
            const unsigned int add_89 = hlo_add(add_85, add_88);
            const unsigned int shift_left_32 = hlo_shift_left(add_88, 17u);
            const unsigned int shift_right_logical_33 = hlo_shift_right_logical(add_88, 15u);
            const unsigned int or_33 = hlo_or(shift_left_32, shift_right_logical_33);
            const unsigned int xor_36 = hlo_xor(add_89, or_33);
            const unsigned int add_90 = hlo_add(add_89, xor_36);
            const unsigned int shift_left_33 = hlo_shift_left(xor_36, 29u);
            const unsigned int shift_right_logical_34 = hlo_shift_right_logical(xor_36, 3u);
            const unsigned int or_34 = hlo_or(shift_left_33, shift_right_logical_34);
            const unsigned int xor_37 = hlo_xor(add_90, or_34);
            const unsigned int add_91 = hlo_add(add_90, xor_37);
            const unsigned int shift_left_34 = hlo_shift_left(xor_37, 16u);
            const unsigned int shift_right_logical_35 = hlo_shift_right_logical(xor_37, 16u);
            const unsigned int or_35 = hlo_or(shift_left_34, shift_right_logical_35);
            const unsigned int xor_38 = hlo_xor(add_91, or_35);
            const unsigned int add_92 = hlo_add(add_91, xor_38);
            const unsigned int add_94 = hlo_add(add_92, words_1__1);
            const unsigned int shift_left_35 = hlo_shift_left(xor_38, 24u);
            const unsigned int shift_right_logical_36 = hlo_shift_right_logical(xor_38, 8u);
            const unsigned int or_36 = hlo_or(shift_left_35, shift_right_logical_36);
            const unsigned int xor_39 = hlo_xor(add_92, or_36);
            const unsigned int add_96 = hlo_add(xor_39, xor_23_xor_0);
            const unsigned int add_97 = hlo_add(add_96, 4u);
            const unsigned int add_98 = hlo_add(add_94, add_97);
            const unsigned int shift_left_36 = hlo_shift_left(add_97, 13u);
            const unsigned int shift_right_logical_37 = hlo_shift_right_logical(add_97, 19u);
            const unsigned int or_37 = hlo_or(shift_left_36, shift_right_logical_37);
            const unsigned int xor_40 = hlo_xor(add_98, or_37);
            const unsigned int add_99 = hlo_add(add_98, xor_40);
            const unsigned int shift_left_37 = hlo_shift_left(xor_40, 15u);
            const unsigned int shift_right_logical_38 = hlo_shift_right_logical(xor_40, 17u);
            const unsigned int or_38 = hlo_or(shift_left_37, shift_right_logical_38);
            const unsigned int xor_41 = hlo_xor(add_99, or_38);
            const unsigned int add_100 = hlo_add(add_99, xor_41);
            const unsigned int shift_left_38 = hlo_shift_left(xor_41, 26u);
            const unsigned int shift_right_logical_39 = hlo_shift_right_logical(xor_41, 6u);
            const unsigned int or_39 = hlo_or(shift_left_38, shift_right_logical_39);
            const unsigned int xor_42 = hlo_xor(add_100, or_39);
            const unsigned int add_101 = hlo_add(add_100, xor_42);
            const unsigned int add_103 = hlo_add(add_101, xor_23_xor_0);
            const unsigned int shift_left_39 = hlo_shift_left(xor_42, 6u);
            const unsigned int shift_right_logical_40 = hlo_shift_right_logical(xor_42, 26u);
            const unsigned int or_40 = hlo_or(shift_left_39, shift_right_logical_40);
            const unsigned int xor_43 = hlo_xor(add_101, or_40);
            const unsigned int add_105 = hlo_add(xor_43, words_1);
            const unsigned int add_106 = hlo_add(add_105, 5u);
            const unsigned int xor_45 = hlo_xor(add_103, add_106);
            const bool lt_3 = hlo_compare_lt(xor_45, 3865470464u);
            lt_3_w_0.v[lane] = store_as<bool>(lt_3);
            const float x_1 = load_as<float>(x_1_v_0.v[lane]);
            const float div_5 = hlo_divide_shared(x_1, 0.9f);
            const float select_n_1 = (lt_3 ? div_5 : 0.0f);
            const float residual_1 = load_as<float>(residual_1_v_0.v[lane]);
            const float add_122 = hlo_add(select_n_1, residual_1);
            add_122_kept_0[k * 4 + l * 4 + lane] = add_122;
            reduce_sum_14_state_0[0] = Reduce0::combine(reduce_sum_14_state_0[0], Reduce0::State{add_122});
          }
          *reinterpret_cast<Vec<bool, 4>*>(p_lt_3 + (at_0)) = lt_3_w_0;
        }
      }
      reduce_warps<Reduce0>(reduce_sum_14_state_0, exchange_0_0);
      __syncthreads();
      combine_warps<Reduce0, 64, false>(reduce_sum_14_state_0, exchange_0_0);
      Reduce0::State reduce_sum_15_state_0[1];
      #pragma unroll
      for (int i = 0; i < 1; ++i) reduce_sum_15_state_0[i] = Reduce0::identity();
      const float reduce_sum_14 = reduce_sum_14_state_0[0].f0;
      const float div_6_divide_0 = hlo_divide_shared(reduce_sum_14, 256.0f);
      {
        const int k = 0;
        {
          const int l = 0;
          const int col = l * 256 + tx * 4;
          #pragma unroll
          for (int lane = 0; lane < 4; ++lane) {
            const float add_122__1 = add_122_kept_0[k * 4 + l * 4 + lane];
            const float sub_21 = hlo_subtract(add_122__1, div_6_divide_0);
            sub_21_kept_0[k * 4 + l * 4 + lane] = sub_21;
            const float square_1 = hlo_multiply(sub_21, sub_21);
            reduce_sum_15_state_0[0].f0 = hlo_multiply_add(sub_21, sub_21, reduce_sum_15_state_0[0].f0);
          }
        }
      }
      reduce_warps<Reduce0>(reduce_sum_15_state_0, exchange_0_1);
      __syncthreads();
      combine_warps<Reduce0, 64, false>(reduce_sum_15_state_0, exchange_0_1);
      const float reduce_sum_15 = reduce_sum_15_state_0[0].f0;
      const float div_7_divide_0 = hlo_divide_shared(reduce_sum_15, 256.0f);
      const float add_123_add_0 = hlo_add(div_7_divide_0, 1e-06f);
      const float rsqrt_1_rsqrt_0 = hlo_rsqrt(add_123_add_0);
      {
        const int k = 0;
        {
          const int l = 0;
          const int col = l * 256 + tx * 4;
          const Vec<float, 4> gamma_1_v_0 = from_words<Vec<float, 4>>(gamma_1_now_0[k + l]);
          const Vec<float, 4> beta_1_v_0 = from_words<Vec<float, 4>>(beta_1_now_0[k + l]);
          const int at_0__1 = outer * 256 + col;
          Vec<float, 4> add_127_w_0;
          #pragma unroll
          for (int lane = 0; lane < 4; ++lane) {
            const float sub_21__1 = sub_21_kept_0[k * 4 + l * 4 + lane];
            const float mul_19 = hlo_multiply(sub_21__1, rsqrt_1_rsqrt_0);
            const float gamma_1 = load_as<float>(gamma_1_v_0.v[lane]);
            const float mul_23 = hlo_multiply(mul_19, gamma_1);
            const float beta_1 = load_as<float>(beta_1_v_0.v[lane]);
            const float add_127 = hlo_add(mul_23, beta_1);
            add_127_w_0.v[lane] = store_as<float>(add_127);
          }
          *reinterpret_cast<Vec<float, 4>*>(p_add_127 + (at_0__1)) = add_127_w_0;
        }
      }
    }
  }
}
