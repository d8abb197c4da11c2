// A history: two runtimes on one network, applications on both, and troubles, all from one seed.
//
//   world.cc  set-up, checks, winding down      world_troubles.cc  the troubles, and what they excuse
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "device/soft/soft_device.hpp"
#include "pollcore/error.hpp"
#include "pollcore/runtime.hpp"
#include "sim/application.hpp"
#include "sim/model.hpp"
#include "sim/random.hpp"
#include "sim/scheduler.hpp"
#include "sim/trace.hpp"
#include "sim/troubles.hpp"
#include "sim/violation.hpp"

namespace pollcore::sim {

/// A shared receive queue, as its application sees it.
struct SharedReceives {
    static constexpr std::uint32_t kSlots = 64;  ///< slots of memory; a slot whose receive has failed is not used again

    std::uint32_t runtime = 0;
    std::uint32_t depth = 0;
    SharedReceiveQueue queue;
    MemoryRegion memory;
    SharedQueue* state = nullptr;
    bool closed = false;
    std::uint32_t limits_armed = 0;
    std::uint32_t limits_reached = 0;  ///< events that reported a reached limit

    [[nodiscard]] std::byte* slot(std::uint32_t slot) const noexcept;
};

/// A queue pair, as the applications that post to it see it.
struct Channel {
    // The memory of each life: receives, sends, the target of the peer's writes, the source of the peer's reads, and
    // one word for the peer's atomics.
    static constexpr std::uint32_t kSlotBytes = 384;
    static constexpr std::uint32_t kSlots = 12;  ///< slots of each kind; more than any queue in a history is deep
    static constexpr std::uint32_t kLives = 3;
    static constexpr std::size_t kLifeBytes = std::size_t{kSlotBytes} * (3 * kSlots + 1) + 64;

    std::uint32_t index = 0;
    std::uint32_t runtime = 0;
    QueuePair qp;
    std::uint32_t qp_num = 0;
    MemoryRegion memory;
    Channel* peer = nullptr;  ///< null for a UD queue pair
    End* end = nullptr;       ///< the present life
    std::vector<End*> lives;
    std::vector<QpHandle> handles;     ///< one for each life
    SharedReceives* shared = nullptr;  ///< shared receive queue of the queue pair; null: it has its own receive queue
    std::uint32_t lasting = 0;         ///< excuses that all later lives of the queue pair have, too
    bool ready = false;                ///< connected, and not being ended
    bool closed = false;
    std::uint32_t sends_max = 0;  ///< for each session
    std::uint32_t receives_max = 0;
    std::uint32_t inline_max = 0;
    std::uint32_t sges_max = 1;
    bool coalesces = false;  ///< QueuePairOptions::coalesce_signals
    std::vector<Application*> users;
    std::uint64_t sends_submitted = 0;
    std::uint64_t submitting = 0;  ///< tag of the request whose submission is in progress; 0: none
    // For a UD queue pair:
    static constexpr std::uint32_t kQkey = 0x77;
    bool datagram = false;
    std::array<AddressHandle, 2> ways;  ///< to each side; invalid if the side has no UD queue pair
    std::array<bool, 2> way_ends{};     ///< whether the address handle to the side is being destroyed
    // For a connected queue pair with a window. The window opens the memory that the peer writes to.
    MemoryWindow window;
    bool window_busy = false;          ///< a bind or an invalidation is in flight
    std::uint32_t window_key = 0;      ///< valid rkey of the window; 0: it has none, or the rkey is being ended
    const End* window_life = nullptr;  ///< the life in which the window was bound
    /// A life in which a bind or an invalidation of a type 2 window failed, so nobody knows if the window is bound.
    const End* window_in_doubt = nullptr;
    std::uint32_t next_key = 0;
    std::vector<std::uint32_t> dying_keys;  ///< rkeys that end with the present life
    std::vector<std::uint32_t> dead_keys;   ///< rkeys that have ended

    /// Notes an rkey of a type 2 window. It ends with the life in which the window was bound.
    void ends_with_life(const End& life, std::uint32_t key) { (&life == end ? dying_keys : dead_keys).push_back(key); }

    [[nodiscard]] std::byte* receive_slot(std::uint32_t slot) const noexcept {
        return memory.data() + (lives.size() - 1) * kLifeBytes + slot * kSlotBytes;
    }
    [[nodiscard]] std::byte* send_slot(std::uint32_t slot) const noexcept { return receive_slot(kSlots + slot); }
    [[nodiscard]] std::byte* landing_slot(std::uint32_t slot) const noexcept { return receive_slot(2 * kSlots + slot); }
    [[nodiscard]] std::byte* source(std::size_t life) const noexcept {
        return memory.data() + life * kLifeBytes + 3 * kSlots * kSlotBytes;
    }
    [[nodiscard]] std::byte* source() const noexcept { return source(lives.size() - 1); }
    [[nodiscard]] std::byte* word(std::size_t life) const noexcept { return source(life) + kSlotBytes; }
    [[nodiscard]] std::byte* word() const noexcept { return word(lives.size() - 1); }
    [[nodiscard]] static std::uint64_t source_pattern(const End& end) noexcept { return end.number << 40 | 0xf0; }
};

inline std::byte* SharedReceives::slot(std::uint32_t slot) const noexcept {
    return memory.data() + slot * Channel::kSlotBytes;
}

/// With this name, the seed chooses the kind of world.
inline constexpr std::string_view kAllWorlds = "all";

struct HistoryOptions {
    std::uint64_t seed = 1;
    std::uint64_t steps = 2000;
    std::string world{kAllWorlds};
    std::vector<std::size_t> without;  ///< indices of planned troubles that do not happen
    bool print = false;
};

/// A kind of world: its name, a sentence about it, and its parameters.
struct WorldKind {
    std::string_view name;
    std::string_view about;
    std::uint32_t connections_max;
    std::uint32_t troubles_max;
    std::uint32_t shared_in;     ///< one application in this many has a shared receive queue
    std::uint32_t datagrams_in;  ///< one application in this many has a UD queue pair
    std::uint32_t windows_in;    ///< one end of a connection in this many has a memory window
    std::vector<Trouble> among;  ///< the troubles that can happen; empty: all
};
[[nodiscard]] const std::vector<WorldKind>& world_kinds();

class World {
public:
    explicit World(const HistoryOptions& options);
    ~World();

    /// Runs the history to its end. Throws Violation.
    void run();

    // ---- for applications ----

    Scheduler scheduler;
    Trace trace;
    Model model;
    [[nodiscard]] bool winding_down() const noexcept { return winding_down_; }
    [[nodiscard]] Channel& channel(std::size_t index) { return *channels_[index]; }
    /// The planned defect that the next request of this channel must have.
    [[nodiscard]] Defect take_defect(Channel& channel);
    void met(Trouble trouble, const Channel& channel);
    /// The UD queue pairs.
    [[nodiscard]] const std::vector<Channel*>& datagrams() const noexcept { return datagrams_; }
    /// Returns the life of a queue pair of this side that has, or had, this handle. Returns null if there is none.
    [[nodiscard]] End* life_of(std::uint32_t runtime, QpHandle qp) const noexcept;

    // ---- after run() ----

    [[nodiscard]] const Coverage& coverage() const noexcept { return coverage_; }
    [[nodiscard]] const std::vector<Planned>& plan() const noexcept { return plan_; }
    [[nodiscard]] std::uint64_t steps() const noexcept { return scheduler.steps(); }
    [[nodiscard]] std::vector<std::string> state() const;
    /// Whether the provider may have refused to destroy an object.
    [[nodiscard]] bool may_leave_objects() const noexcept;

private:
    struct Injected {
        Trouble trouble{};
        SoftFault::Kind kind{};
        const Channel* channel = nullptr;  ///< null: any channel of the side
        std::uint64_t met_before = 0;
    };
    struct Side {
        std::string name;
        std::unique_ptr<Runtime> runtime;
        const ControlCounters* counters = nullptr;  ///< counters of the runtime
        SoftDevice* device = nullptr;               ///< null when the device is, or may be, gone
        std::vector<Injected> injected;             ///< injected faults that have not happened yet
        std::uint64_t events_told = 0;
        bool stopping = false;
        bool lost = false;
    };

    void live();  // the first thread: sets up, causes the troubles, and winds down
    void set_up();
    [[nodiscard]] std::unique_ptr<Device> open_device(Side& side, const DeviceConfig& config);
    void make_channel(std::uint32_t runtime);
    void make_datagrams(std::uint32_t runtime, Application& application);
    void make_way(Channel& channel, std::uint32_t to);
    void renew_way(Channel& channel, std::uint32_t to);
    void make_shared(std::uint32_t runtime, Application& application);
    void begin_life(Channel& channel);
    void connect(Channel& a, Channel& b);
    void wind_down();
    void check();

    void cause(const Planned& planned);
    void inject(Side& side, const Channel* channel, Trouble trouble, SoftFault fault);
    void note_met(Side& side);
    void excuse(Channel& channel, std::uint32_t own, std::uint32_t peers);
    void excuse_device(const Side& side, std::uint32_t own, std::uint32_t peers);
    void end_life(Channel& channel, std::uint32_t excuses);
    void closes_session(Channel& channel);
    void closes_session(Application& application);
    void ask_window(Channel& channel);
    void end_shared(SharedReceives& shared);
    void arm_limit(SharedReceives& shared, Random& chance);
    void note_events(Side& side);
    void reset(Channel& channel);
    void create_more(Side& side, Application& application);
    /// Returns false if the call failed. Throws Violation if the call failed although may_fail() is false.
    template <class MayFail, class Call>
    bool attempt(const char* what, MayFail&& may_fail, Call&& call);
    [[nodiscard]] bool may_be_gone(const Channel& channel) const;
    [[nodiscard]] Doing doing(const Channel& channel) const;
    [[nodiscard]] Side& side_of(const Channel& channel) { return sides_[channel.runtime]; }

    HistoryOptions options_;
    Random random_;
    const WorldKind* kind_ = nullptr;
    std::vector<Planned> plan_;
    Coverage coverage_{};
    std::vector<Side> sides_;
    std::vector<std::unique_ptr<Application>> applications_;
    std::vector<std::unique_ptr<Channel>> channels_;
    std::vector<std::unique_ptr<SharedReceives>> shared_;
    std::vector<Channel*> datagrams_;
    std::vector<std::pair<Channel*, Defect>> defects_;  ///< defects for the next request of a channel
    bool control_may_fail_ = false;
    bool winding_down_ = false;
};

template <class MayFail, class Call>
bool World::attempt(const char* what, MayFail&& may_fail, Call&& call) {
    try {
        call();
        return true;
    } catch (const Error& error) {
        trace.add(what);
        trace.add("... failed with errno {}", static_cast<std::uint64_t>(error.code().value()));
        if (!control_may_fail_ && !may_fail()) {
            throw Violation("control", fmt::format("{}: {}", what, error.what()));
        }
        return false;
    }
}

}  // namespace pollcore::sim
