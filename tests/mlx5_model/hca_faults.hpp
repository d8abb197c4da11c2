// Planned faults: on the wire, and in the sends and receives of a queue pair.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <random>

namespace mlx5_model {

/// What happens to a request on the wire.
enum class Fate : std::uint8_t { arrives, is_lost, answer_is_lost, arrives_twice };

/// The number of requests in 1024 that each fault hits.
struct WireFaults {
    std::uint32_t requests_lost = 0;
    std::uint32_t answers_lost = 0;
    std::uint32_t requests_repeated = 0;
    std::uint64_t seed = 1;
};

struct PlannedError {
    std::uint8_t syndrome = 0;  ///< MLX5_CQE_SYNDROME_...
    std::uint8_t vendor_syndrome = 0;
};

/// Not thread-safe: callers hold the fabric's lock.
class FaultPlan {
public:
    /// Sets the rates of random faults, until the next call. MLX5_MODEL_LOSS=requests,answers,repeated[,seed] in the
    /// environment sets the initial rates.
    void on_the_wire(const WireFaults& faults);
    /// Plans `fate` for the next `count` requests of a queue pair. After these requests, random faults start again.
    /// Replaces an earlier plan for the queue pair.
    void meet(std::uint32_t qpn, Fate fate, std::uint32_t count);
    /// Lets `after` sends, or receives, of a queue pair go on as usual, and ends the one after them with this error.
    void fail_send(std::uint32_t qpn, std::uint32_t after, PlannedError error);
    void fail_receive(std::uint32_t qpn, std::uint32_t after, PlannedError error);

    /// The fate of the queue pair's next request. Random faults spare unreliable queue pairs, because nobody would
    /// repeat their requests.
    [[nodiscard]] Fate next_fate(std::uint32_t qpn, bool reliable);
    [[nodiscard]] std::optional<PlannedError> next_send_error(std::uint32_t qpn) { return next(send_errors_, qpn); }
    [[nodiscard]] std::optional<PlannedError> next_receive_error(std::uint32_t qpn) {
        return next(receive_errors_, qpn);
    }
    /// Drops all plans for a queue pair, which is being destroyed.
    void forget(std::uint32_t qpn);

private:
    struct Met {
        Fate fate;
        std::uint32_t count;
    };
    struct Planned {
        std::uint32_t after;
        PlannedError error;
    };
    static std::optional<PlannedError> next(std::map<std::uint32_t, Planned>& plans, std::uint32_t qpn);

    WireFaults wire_;
    std::mt19937_64 random_{1};
    std::map<std::uint32_t, Met> met_;
    std::map<std::uint32_t, Planned> send_errors_;
    std::map<std::uint32_t, Planned> receive_errors_;
};

}  // namespace mlx5_model
