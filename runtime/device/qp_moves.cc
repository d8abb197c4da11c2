#include "device/qp_moves.hpp"

#include <array>
#include <cstddef>
#include <span>

#include <fmt/format.h>

namespace pollcore {
namespace {

struct Move {
    ibv_qp_state from;
    ibv_qp_state to;
    int required;
    int optional;
};

constexpr int kConnected = IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
constexpr int kRtr = kConnected | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
constexpr int kRts = IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC;
constexpr int kInit = IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
constexpr int kUdInit = IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY;

constexpr std::array kRcMoves = {
    Move{IBV_QPS_RESET, IBV_QPS_INIT, kInit, 0},
    Move{IBV_QPS_INIT, IBV_QPS_INIT, 0, kInit},
    Move{IBV_QPS_INIT, IBV_QPS_RTR, kRtr, IBV_QP_PKEY_INDEX | IBV_QP_ACCESS_FLAGS},
    Move{IBV_QPS_RTR, IBV_QPS_RTS, kRts, IBV_QP_CUR_STATE | IBV_QP_ACCESS_FLAGS | IBV_QP_MIN_RNR_TIMER},
    Move{IBV_QPS_RTS, IBV_QPS_RTS, 0, IBV_QP_CUR_STATE | IBV_QP_ACCESS_FLAGS | IBV_QP_MIN_RNR_TIMER},
};
constexpr std::array kUcMoves = {
    Move{IBV_QPS_RESET, IBV_QPS_INIT, kInit, 0},
    Move{IBV_QPS_INIT, IBV_QPS_INIT, 0, kInit},
    Move{IBV_QPS_INIT, IBV_QPS_RTR, kConnected, IBV_QP_PKEY_INDEX | IBV_QP_ACCESS_FLAGS},
    Move{IBV_QPS_RTR, IBV_QPS_RTS, IBV_QP_SQ_PSN, IBV_QP_CUR_STATE | IBV_QP_ACCESS_FLAGS},
    Move{IBV_QPS_RTS, IBV_QPS_RTS, 0, IBV_QP_CUR_STATE | IBV_QP_ACCESS_FLAGS},
    Move{IBV_QPS_SQE, IBV_QPS_RTS, 0, IBV_QP_CUR_STATE | IBV_QP_ACCESS_FLAGS},
};
constexpr std::array kUdMoves = {
    Move{IBV_QPS_RESET, IBV_QPS_INIT, kUdInit, 0},
    Move{IBV_QPS_INIT, IBV_QPS_INIT, 0, kUdInit},
    Move{IBV_QPS_INIT, IBV_QPS_RTR, 0, IBV_QP_PKEY_INDEX | IBV_QP_QKEY},
    Move{IBV_QPS_RTR, IBV_QPS_RTS, IBV_QP_SQ_PSN, IBV_QP_CUR_STATE | IBV_QP_QKEY},
    Move{IBV_QPS_RTS, IBV_QPS_RTS, 0, IBV_QP_CUR_STATE | IBV_QP_QKEY},
    Move{IBV_QPS_SQE, IBV_QPS_RTS, 0, IBV_QP_CUR_STATE | IBV_QP_QKEY},
};

[[nodiscard]] std::span<const Move> moves_of(ibv_qp_type type) {
    switch (type) {
        case IBV_QPT_UC: return kUcMoves;
        case IBV_QPT_UD: return kUdMoves;
        default: return kRcMoves;
    }
}

struct Name {
    int bit;
    std::string_view name;
};
constexpr std::array kNames = {
    Name{IBV_QP_CUR_STATE, "IBV_QP_CUR_STATE"},
    Name{IBV_QP_ACCESS_FLAGS, "IBV_QP_ACCESS_FLAGS"},
    Name{IBV_QP_PKEY_INDEX, "IBV_QP_PKEY_INDEX"},
    Name{IBV_QP_PORT, "IBV_QP_PORT"},
    Name{IBV_QP_QKEY, "IBV_QP_QKEY"},
    Name{IBV_QP_AV, "IBV_QP_AV"},
    Name{IBV_QP_PATH_MTU, "IBV_QP_PATH_MTU"},
    Name{IBV_QP_TIMEOUT, "IBV_QP_TIMEOUT"},
    Name{IBV_QP_RETRY_CNT, "IBV_QP_RETRY_CNT"},
    Name{IBV_QP_RNR_RETRY, "IBV_QP_RNR_RETRY"},
    Name{IBV_QP_RQ_PSN, "IBV_QP_RQ_PSN"},
    Name{IBV_QP_MAX_QP_RD_ATOMIC, "IBV_QP_MAX_QP_RD_ATOMIC"},
    Name{IBV_QP_ALT_PATH, "IBV_QP_ALT_PATH"},
    Name{IBV_QP_MIN_RNR_TIMER, "IBV_QP_MIN_RNR_TIMER"},
    Name{IBV_QP_SQ_PSN, "IBV_QP_SQ_PSN"},
    Name{IBV_QP_MAX_DEST_RD_ATOMIC, "IBV_QP_MAX_DEST_RD_ATOMIC"},
    Name{IBV_QP_DEST_QPN, "IBV_QP_DEST_QPN"},
};

[[nodiscard]] std::string names_of(int bits) {
    std::string text;
    for (const Name& known : kNames) {
        if ((bits & known.bit) == 0) {
            continue;
        }
        bits &= ~known.bit;
        text += text.empty() ? "" : ", ";
        text += known.name;
    }
    if (bits != 0) {
        text += fmt::format("{}{:#x}", text.empty() ? "" : ", ", static_cast<unsigned>(bits));
    }
    return text;
}

}  // namespace

std::string_view name_of(ibv_qp_state state) noexcept {
    constexpr std::array<std::string_view, 7> kStates = {"RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR"};
    const auto index = static_cast<std::size_t>(state);
    return index < kStates.size() ? kStates[index] : "of no name";
}

std::string why_no_move(ibv_qp_type type, ibv_qp_state from, ibv_qp_state to, int mask) {
    const int given = mask & ~IBV_QP_STATE;
    if (to == IBV_QPS_RESET || (to == IBV_QPS_ERR && from != IBV_QPS_RESET)) {
        return given == 0 ? "" : fmt::format("no other attribute goes with it, given {}", names_of(given));
    }
    for (const Move& known : moves_of(type)) {
        if (known.from != from || known.to != to) {
            continue;
        }
        if (const int missing = known.required & ~given; missing != 0) {
            return fmt::format("it needs {} too", names_of(missing));
        }
        const int extra = given & ~(known.required | known.optional);
        return extra == 0 ? "" : fmt::format("it does not take {}", names_of(extra));
    }
    return "there is no such transition; the way is RESET, INIT, RTR, RTS, from SQE (UC and UD) back to RTS, from any "
           "state "
           "RESET, and from any state but RESET to ERR";
}

}  // namespace pollcore
