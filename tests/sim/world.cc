#include "sim/world.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include <fmt/format.h>

#include "pollcore/error.hpp"
#include "sim/sim_platform.hpp"
#include "sim/violation.hpp"

namespace pollcore::sim {
namespace {

constexpr std::array<Shape, 6> kShapes{
    Shape{.name = "ping-pong", .window = 1, .batch = 1, .polls = 2},
    Shape{.name = "stream", .window = 8, .batch = 4, .polls = 3},
    Shape{.name = "flood", .window = 64, .batch = 12, .polls = 2},
    Shape{.name = "bursts", .window = 8, .batch = 8, .polls = 8, .idles = 3},
    Shape{.name = "slow", .window = 4, .batch = 2, .polls = 6, .idles = 2, .receives = 50},
    Shape{.name = "careless", .window = 64, .batch = 12, .polls = 2, .idles = 2, .receives = 20},
};

// Without planned troubles, all work that can end has ended after this many steps.
constexpr std::uint64_t kStepsToRest = 100'000;

[[nodiscard]] std::uint32_t power_of_two(Random& random, std::uint32_t low_log2, std::uint32_t high_log2) {
    return 1u << random.between(low_log2, high_log2);
}

}  // namespace

const std::vector<WorldKind>& world_kinds() {
    static const std::vector<WorldKind> kinds{
        {"calm", "up to three connections and nothing that goes wrong", 3, 0, 4, 8, 4, {}},
        {"any", "up to three connections and four troubles of any kind", 3, 4, 4, 8, 4, {}},
        {"network",
         "packets that are late or lost, ports that go down",
         3,
         4,
         4,
         8,
         4,
         {Trouble::delay, Trouble::loss, Trouble::outage, Trouble::port_flap}},
        {"provider",
         "calls that fail, bad statuses, full CQs, lost devices",
         3,
         4,
         4,
         8,
         4,
         {Trouble::send_status, Trouble::receive_status, Trouble::refuse_send, Trouble::refuse_receive,
          Trouble::overrun, Trouble::fail_poll, Trouble::fail_modify, Trouble::fail_destroy, Trouble::fail_create,
          Trouble::fail_arm, Trouble::device_fatal, Trouble::device_removed}},
        {"ends",
         "queue pairs, sessions and runtimes that are closed in the middle",
         4,
         6,
         4,
         8,
         4,
         {Trouble::reset, Trouble::disconnect, Trouble::close_qp, Trouble::close_session, Trouble::stop_runtime,
          Trouble::stop_polling, Trouble::delay}},
        {"resets",
         "queue pairs that have trouble while they are reset and connected again",
         2,
         16,
         2,
         8,
         4,
         {Trouble::reset, Trouble::reset, Trouble::loss, Trouble::outage, Trouble::delay, Trouble::refuse_receive,
          Trouble::refuse_send, Trouble::receive_status, Trouble::send_status, Trouble::fail_modify,
          Trouble::fail_create, Trouble::stop_polling, Trouble::device_fatal, Trouble::fail_arm, Trouble::disconnect,
          Trouble::too_long, Trouble::end_shared}},
        {"storm", "one connection and many troubles", 1, 12, 4, 8, 4, {}},
        {"shared",
         "queue pairs that take their receives from shared queues, and end while those go on",
         4,
         6,
         1,
         16,
         8,
         {Trouble::reset, Trouble::disconnect, Trouble::close_qp, Trouble::close_session, Trouble::end_shared,
          Trouble::end_shared, Trouble::arm_limit, Trouble::stop_polling, Trouble::delay, Trouble::loss,
          Trouble::outage, Trouble::too_long, Trouble::receive_status, Trouble::device_fatal}},
        {"datagrams",
         "UD queue pairs, and address handles that end",
         1,
         4,
         16,
         1,
         8,
         {Trouble::reset, Trouble::close_qp, Trouble::close_session, Trouble::end_way, Trouble::end_way,
          Trouble::end_way, Trouble::stop_polling, Trouble::local_key, Trouble::refuse_send}},
        {"windows",
         "memory windows that are bound and ended, and keys that open nothing any more",
         2,
         6,
         16,
         16,
         1,
         {Trouble::reset, Trouble::reset, Trouble::remote_key, Trouble::remote_key, Trouble::remote_key,
          Trouble::close_qp, Trouble::delay, Trouble::loss, Trouble::stop_polling, Trouble::send_status,
          Trouble::disconnect}},
    };
    return kinds;
}

World::World(const HistoryOptions& options)
    : scheduler(Random(options.seed * 4 + 1)),
      trace(scheduler, options.print),
      model(trace),
      options_(options),
      random_(options.seed * 4 + 2) {
    for (const WorldKind& kind : world_kinds()) {
        if (kind.name == options.world) {
            kind_ = &kind;
        }
    }
    if (options.world == kAllWorlds) {
        kind_ = &world_kinds()[options.seed % world_kinds().size()];
    }
    if (kind_ == nullptr) {
        throw Error(EINVAL, fmt::format("there is no world \"{}\"", options.world));
    }
    Random of_plan(options.seed * 4 + 3);
    plan_ = draw_plan(of_plan, kind_->troubles_max, options.steps, kind_->among);
}

World::~World() = default;

void World::run() {
    scheduler.start("main", [this] { live(); });
    while (scheduler.step()) {
        check();
    }
    sides_.clear();
    applications_.clear();
    channels_.clear();
    if (SimPlatform::allocated() != 0) {
        throw Violation("end",
                        fmt::format("{} bytes of the platform's memory were not given back", SimPlatform::allocated()));
    }
}

void World::check() {
    for (const auto& application : applications_) {
        application->check_figures();
    }
    for (Side& side : sides_) {
        if (!side.injected.empty() && side.device != nullptr) {
            note_met(side);
        }
        if (side.runtime != nullptr) {
            note_events(side);
            const ControlCounters& counters = *side.counters;
            if (counters.async_events.value() - counters.async_events_acknowledged.value() > 1) {
                throw Violation(
                    "I9 events",
                    fmt::format("{} events of {} were taken and {} acknowledged, one after the other",
                                counters.async_events.value(), side.name, counters.async_events_acknowledged.value()));
            }
        }
    }
    if (scheduler.steps() > options_.steps + 4 * kStepsToRest) {
        throw Violation("no end",
                        "the history does not come to its end\n" + fmt::format("{}", fmt::join(state(), "\n")));
    }
}

// ---- The first thread ----

void World::live() {
    set_up();
    std::size_t next = 0;
    while (scheduler.steps() < options_.steps) {
        for (; next < plan_.size() && plan_[next].step <= scheduler.steps(); ++next) {
            if (std::find(options_.without.begin(), options_.without.end(), next) == options_.without.end()) {
                cause(plan_[next]);
            }
        }
        const std::uint64_t until = next < plan_.size() ? std::min(plan_[next].step, options_.steps) : options_.steps;
        scheduler.wait([&] { return scheduler.steps() >= until; });
    }
    wind_down();
}

/// Whether the queue pair may have ended with its session, CQ, runtime or device. Calls on it may then fail.
bool World::may_be_gone(const Channel& channel) const {
    return (channel.end->excuses & (kCqLost | kSessionClosing | kDeviceLost)) != 0 ||
           sides_[channel.runtime].stopping ||
           std::any_of(channel.users.begin(), channel.users.end(),
                       [](const Application* user) { return user->closing(); });
}

std::unique_ptr<Device> World::open_device(Side& side, const DeviceConfig& config) {
    SoftDeviceOptions options;
    options.name = config.name;
    options.fabric = "simulated";
    options.clock_ns = [this] { return scheduler.now_ns(); };
    options.active_mtu = IBV_MTU_512;
    options.fault_seed = random_.next();
    switch (config.profile) {
        case DeviceConfig::Profile::standard: break;
        case DeviceConfig::Profile::rxe: options.profile = kRxeLike; break;
        case DeviceConfig::Profile::mlx5: options.profile = kMlx5Like; break;
    }
    auto device = open_soft_device(std::move(options));
    side.device = device.get();
    return device;
}

void World::set_up() {
    constexpr std::array<DeviceConfig::Profile, 4> kProfiles{DeviceConfig::Profile::standard,
                                                             DeviceConfig::Profile::standard,
                                                             DeviceConfig::Profile::rxe, DeviceConfig::Profile::mlx5};
    constexpr std::array<std::uint32_t, 4> kBursts{1, 2, 4, 32};
    const DeviceConfig::Profile profile = random_.pick(kProfiles);
    sides_.resize(2);
    for (std::uint32_t i = 0; i < 2; ++i) {
        Side& side = sides_[i];
        side.name = i == 0 ? "near" : "far";
        Config config;
        config.devices.push_back({.name = "soft", .profile = profile});
        const std::uint32_t workers = random_.between(1, 2);
        for (std::uint32_t worker = 0; worker < workers; ++worker) {
            config.workers.push_back({.name = fmt::format("worker{}", worker),
                                      .core = worker,
                                      .idle = random_.one_in(2) ? IdlePolicy::event : IdlePolicy::spin,
                                      .submit_burst = std::max(8u, random_.pick(kBursts)),
                                      .complete_burst = random_.pick(kBursts),
                                      .qp_burst = random_.pick(kBursts),
                                      .cq_depth = power_of_two(random_, 5, 8),
                                      .poll = random_.one_in(2) ? PollVerbs::plain : PollVerbs::extended});
        }
        config.qps_max = 16;
        config.log_level = options_.print ? LogLevel::info : LogLevel::error;
        config.drain_timeout = std::chrono::milliseconds(50);
        side.runtime = std::make_unique<Runtime>(
            config, std::make_unique<SimPlatform>(
                        scheduler, side.name, random_.split(),
                        [this, &side](const DeviceConfig& device) { return open_device(side, device); }));
        side.counters = &side.runtime->control_counters();
    }
    // Two applications on each side, then connections between them.
    for (std::uint32_t i = 0; i < 4; ++i) {
        Side& side = sides_[i / 2];
        const Shape& shape = random_.pick(kShapes);
        SessionOptions options;
        options.submission_slots = power_of_two(random_, 2, 6);
        options.completion_slots = power_of_two(random_, 4, 6);
        options.events = random_.one_in(2);
        options.wide_completions = random_.one_in(3);
        options.device_time = options.wide_completions && profile != DeviceConfig::Profile::rxe && i % 2 == 0;
        applications_.push_back(
            std::make_unique<Application>(*this, fmt::format("{} {} {}", side.name, shape.name, i % 2), random_.split(),
                                          side.runtime->open_session(options), options.completion_slots,
                                          options.wide_completions, options.device_time, shape));
    }
    for (std::uint32_t i = 0; i < 4; ++i) {
        if (random_.one_in(kind_->shared_in)) {
            make_shared(i / 2, *applications_[i]);
        }
    }
    const std::uint32_t connections = random_.between(1, kind_->connections_max);
    for (std::uint32_t i = 0; i < connections; ++i) {
        const std::uint32_t from = random_.below(2);
        const std::uint32_t to = random_.one_in(4) ? from : 1 - from;
        make_channel(from);
        make_channel(to);
        Channel& a = *channels_[channels_.size() - 2];
        Channel& b = *channels_.back();
        a.peer = &b;
        b.peer = &a;
        connect(a, b);
    }
    for (std::uint32_t i = 0; i < 4; ++i) {
        if (random_.one_in(kind_->datagrams_in)) {
            make_datagrams(i / 2, *applications_[i]);
        }
    }
    for (Channel* channel : datagrams_) {
        for (std::uint32_t to = 0; to < 2; ++to) {
            make_way(*channel, to);
        }
    }
    for (const auto& application : applications_) {
        scheduler.start(application->name(), [&application = *application] { application.run(); });
    }
}

void World::make_channel(std::uint32_t runtime) {
    Side& side = sides_[runtime];
    auto made = std::make_unique<Channel>();
    Channel& channel = *made;
    channel.index = static_cast<std::uint32_t>(channels_.size());
    channel.runtime = runtime;
    channel.sends_max = random_.between(1, 5);
    channel.receives_max = random_.between(1, 8);
    channel.inline_max = random_.one_in(2) ? random_.between(1, 100) : 0;
    channel.sges_max = random_.between(1, 2);
    channel.coalesces = random_.one_in(3);
    Application& first = *applications_[runtime * 2 + random_.below(2)];
    Application& other =
        &first == applications_[runtime * 2].get() ? *applications_[runtime * 2 + 1] : *applications_[runtime * 2];
    channel.users.push_back(&first);
    if (other.session().worker() == first.session().worker() && random_.one_in(3)) {
        channel.users.push_back(&other);
    }
    QueuePairOptions options;
    for (Application* user : channel.users) {
        options.shares.push_back({.session = &user->session(), .send_depth = channel.sends_max});
    }
    options.recv_depth = channel.receives_max;
    options.remote_access = RemoteAccess::all();
    if (first.shared() != nullptr && !random_.one_in(4)) {
        channel.shared = first.shared();
        options.srq = &channel.shared->queue;
    }
    options.sges_max = channel.sges_max;
    options.inline_max = channel.inline_max;
    options.separate_cqs = random_.one_in(2);
    options.coalesce_signals = channel.coalesces;
    Access access = Access::all();
    access.window_bind = true;
    channel.memory = side.runtime->allocate(Channel::kLifeBytes * Channel::kLives, access);
    if (random_.one_in(kind_->windows_in)) {
        channel.window = side.runtime->create_memory_window(
            first.session(), random_.one_in(2) ? WindowType::type_1 : WindowType::type_2);
        channel.next_key = channel.window.rkey();
    }
    channel.qp = side.runtime->create_queue_pair(options);
    channel.qp_num = channel.qp.qp_num();
    channels_.push_back(std::move(made));
    begin_life(channel);
    for (std::size_t lane = 0; lane < channel.users.size(); ++lane) {
        channel.users[lane]->use(channel, lane);
    }
}

void World::make_datagrams(std::uint32_t runtime, Application& application) {
    auto made = std::make_unique<Channel>();
    Channel& channel = *made;
    channel.index = static_cast<std::uint32_t>(channels_.size());
    channel.runtime = runtime;
    channel.datagram = channel.ready = true;
    channel.sends_max = random_.between(1, 5);
    channel.receives_max = random_.between(1, 8);
    channel.inline_max = random_.one_in(2) ? random_.between(1, 100) : 0;
    channel.coalesces = random_.one_in(3);
    channel.users.push_back(&application);
    channel.memory = sides_[runtime].runtime->allocate(Channel::kLifeBytes * Channel::kLives, Access::all());
    channel.qp = sides_[runtime].runtime->create_queue_pair(
        {.type = QpType::ud,
         .qkey = Channel::kQkey,
         .shares = {{.session = &application.session(), .send_depth = channel.sends_max}},
         .recv_depth = channel.receives_max,
         .inline_max = channel.inline_max,
         .separate_cqs = random_.one_in(2),
         .coalesce_signals = channel.coalesces});
    channel.qp_num = channel.qp.qp_num();
    channels_.push_back(std::move(made));
    datagrams_.push_back(&channel);
    begin_life(channel);
    application.use(channel, 0);
}

// Makes an address handle to side `to`, from the information of one of the side's UD queue pairs. The handle reaches
// all of these queue pairs.
void World::make_way(Channel& channel, std::uint32_t to) {
    const auto there = std::find_if(datagrams_.begin(), datagrams_.end(), [&](const Channel* other) {
        return other->runtime == to && !other->closed && !may_be_gone(*other);
    });
    if (there == datagrams_.end()) {
        return;
    }
    const auto may_fail = [&] { return may_be_gone(channel) || may_be_gone(**there); };
    attempt("makes an address handle", may_fail,
            [&] { channel.ways[to] = sides_[channel.runtime].runtime->create_address_handle((*there)->qp.info()); });
}

void World::make_shared(std::uint32_t runtime, Application& application) {
    auto made = std::make_unique<SharedReceives>();
    made->runtime = runtime;
    made->depth = random_.between(1, 16);
    made->memory =
        sides_[runtime].runtime->allocate(std::size_t{SharedReceives::kSlots} * Channel::kSlotBytes, Access::all());
    made->queue =
        sides_[runtime].runtime->create_shared_receive_queue({.session = &application.session(), .depth = made->depth});
    made->state =
        &model.begin_shared(fmt::format("the shared receive queue of {}", application.name()), made->queue.handle());
    application.use(*made);
    shared_.push_back(std::move(made));
}

End* World::life_of(std::uint32_t runtime, QpHandle qp) const noexcept {
    for (const auto& channel : channels_) {
        const auto at = std::find(channel->handles.begin(), channel->handles.end(), qp);
        if (channel->runtime == runtime && at != channel->handles.end()) {
            return channel->lives[static_cast<std::size_t>(at - channel->handles.begin())];
        }
    }
    return nullptr;
}

void World::begin_life(Channel& channel) {
    End& end = model.begin(
        fmt::format("queue pair {} of {}, life {}", channel.index, sides_[channel.runtime].name, channel.lives.size()),
        channel.users.size());
    end.datagrams = channel.datagram;
    end.qp_num = channel.qp_num;
    if (channel.datagram && channel.end != nullptr) {
        model.inherit(end, *channel.end);
    }
    channel.end = &end;
    channel.lives.push_back(&end);
    channel.dead_keys.insert(channel.dead_keys.end(), channel.dying_keys.begin(), channel.dying_keys.end());
    channel.dying_keys.clear();
    channel.handles.push_back(channel.qp.handle());
    fill_pattern({channel.source(), Channel::kSlotBytes}, Channel::source_pattern(end));
    model.excuse(end, channel.lasting);
    if (channel.lives.size() > 1) {
        end.injected = channel.lives[channel.lives.size() - 2]->injected;
    }
    if (channel.lives.size() > 1 && may_be_gone(channel)) {
        model.excuse(end, kSessionClosing);
    }
    if (channel.lives.size() > 1 && channel.window.valid()) {  // a reset may have replaced the window
        attempt(
            "asks for a window's key", [&] { return control_may_fail_ || may_be_gone(channel); },
            [&] { ask_window(channel); });
    }
}

void World::connect(Channel& a, Channel& b) {
    PathAttributes path;
    path.mtu = 256;
    path.timeout = static_cast<std::uint8_t>(random_.between(8, 11));
    path.retry_count = static_cast<std::uint8_t>(random_.between(4, 7));
    path.rnr_retry = static_cast<std::uint8_t>(random_.one_in(2) ? 7 : random_.between(0, 6));
    path.min_rnr_timer = static_cast<std::uint8_t>(random_.between(1, 14));
    path.max_rd_atomic = path.max_dest_rd_atomic = static_cast<std::uint8_t>(random_.between(1, 4));
    model.connect(*a.end, *b.end);
    for (End* end : {a.end, b.end}) {
        end->rnr_for_ever = path.rnr_retry == 7;
        if (!end->rnr_for_ever) {
            model.excuse(*end, kShortOfReceives | kPeerEnding);  // either end may fail, or notice a failure first
        }
        if ((end->peer->excuses & kSessionClosing) != 0) {  // the peer's life began while its session was closing
            model.excuse(*end, kPeerEnding);
        }
    }
    const auto may_fail = [&] {
        // An early message of the peer may have put an end into error before the end was ready.
        constexpr std::uint32_t kHarmless = kShortOfReceives | kPeerEnding;
        return may_be_gone(a) || may_be_gone(b) || ((a.end->excuses | b.end->excuses) & ~kHarmless) != 0;
    };
    const bool connected = attempt("connects", may_fail, [&] {
        const QpInfo info_a = a.qp.info();
        const QpInfo info_b = b.qp.info();
        a.qp.connect(info_b, path);
        b.qp.connect(info_a, path);
    });
    if (!connected) {  // each end has failed, or has no working peer
        end_life(a, kEnding);
        end_life(b, kEnding);
        return;
    }
    a.ready = b.ready = true;
    trace.add("queue pairs {} and {} are connected, rnr_retry {}", a.index, b.index, path.rnr_retry);
}

void World::wind_down() {
    trace.add("winds down");
    winding_down_ = true;
    scheduler.settle();
    for (Side& side : sides_) {
        if (side.device != nullptr) {
            side.device->clear_faults();
            if (!side.lost) {
                side.device->set_port_up(true);
            }
        }
    }
    // If the CQ of a queue pair is lost, its requests wait until the queue pair is destroyed. If the provider refuses
    // to destroy the queue pair, the requests wait until it is closed. Requests may wait for ever if the provider keeps
    // the queue pair, or refused to move it to ERR.
    const std::uint32_t may_wait = control_may_fail_ ? kCqLost | kKept | kModifyFails : 0;
    const auto rest = [&] {
        return std::all_of(applications_.begin(), applications_.end(), [&](const auto& application) {
            return application->ended() || application->sends_rest(may_wait);
        });
    };
    const std::uint64_t limit = scheduler.steps() + kStepsToRest;
    scheduler.wait([&] { return rest() || scheduler.steps() > limit; });
    if (!rest()) {
        throw Violation("stuck",
                        fmt::format("work does not end, and nothing holds it up\n{}", fmt::join(state(), "\n")));
    }
    // Waits until the applications have taken everything that has arrived.
    const std::uint64_t taken = scheduler.steps() + kStepsToRest;
    scheduler.wait([&] {
        return scheduler.steps() > taken || std::all_of(channels_.begin(), channels_.end(), [&](const auto& channel) {
                   return model.rests(*channel->end);
               });
    });
    for (const auto& channel : channels_) {
        model.at_rest(*channel->end);
    }
    for (const auto& channel : channels_) {
        end_life(*channel, kEnding);
        if (!channel->closed) {
            channel->closed = true;
            attempt(
                "closes a queue pair", [] { return false; }, [&] { (void)channel->qp.close(); });
        }
    }
    for (Channel* channel : datagrams_) {
        for (AddressHandle& way : channel->ways) {
            const auto gone = [&] { return control_may_fail_ || may_be_gone(*channel); };
            attempt("destroys an address handle", gone, [&] {
                if (way.valid()) {
                    way.destroy();
                }
            });
        }
    }
    for (const auto& shared : shared_) {
        if (!shared->closed) {
            end_shared(*shared);
        }
    }
    for (const auto& channel : channels_) {
        closes_session(*channel);
    }
    for (const auto& application : applications_) {
        closes_session(*application);
        application->close_session();
    }
    scheduler.wait([&] {
        return std::all_of(applications_.begin(), applications_.end(),
                           [](const auto& application) { return application->ended(); });
    });
    for (const auto& application : applications_) {
        application->check_given_back();
    }
    for (const auto& channel : channels_) {
        for (std::size_t life = 0; life < channel->lives.size(); ++life) {
            const End& end = *channel->lives[life];
            if (!has_pattern({channel->source(life), Channel::kSlotBytes}, Channel::source_pattern(end))) {
                throw Violation("content", end.name + ": memory that is only read by peers has changed");
            }
            std::uint64_t word = 0;
            std::memcpy(&word, channel->word(life), sizeof(word));
            model.at_end(end, word);
        }
    }
    for (const auto& channel : channels_) {
        attempt(
            "deallocates a window", [&] { return control_may_fail_; },
            [&] {
                if (channel->window.valid() && !sides_[channel->runtime].stopping) {
                    channel->window.deallocate();
                }
            });
    }
    for (const auto& channel : channels_) {
        attempt(
            "deregisters memory", [&] { return channel->window.valid() && control_may_fail_; },
            [&] {
                if (!sides_[channel->runtime].stopping) {
                    channel->memory.deregister();
                }
            });
    }
    for (const auto& shared : shared_) {
        attempt(
            "deregisters memory", [] { return false; },
            [&] {
                if (!sides_[shared->runtime].stopping) {
                    shared->memory.deregister();
                }
            });
    }
    for (Side& side : sides_) {
        side.device = nullptr;
        side.stopping = true;
        (void)side.runtime->stop();
        const ControlCounters& counters = *side.counters;
        if (counters.async_events.value() != counters.async_events_acknowledged.value()) {
            throw Violation("I9 events",
                            fmt::format("{} events of {} were taken, {} acknowledged", counters.async_events.value(),
                                        side.name, counters.async_events_acknowledged.value()));
        }
    }
    // Each of these objects keeps its runtime alive.
    for (const auto& channel : channels_) {
        channel->qp = QueuePair();
        channel->ways = {};
        channel->window = MemoryWindow();
        channel->memory = MemoryRegion();
    }
    for (const auto& shared : shared_) {
        shared->queue = SharedReceiveQueue();
        shared->memory = MemoryRegion();
    }
    for (const auto& application : applications_) {
        application->session() = Session();
    }
    for (Side& side : sides_) {
        side.runtime.reset();
    }
}

bool World::may_leave_objects() const noexcept {
    return std::any_of(model.ends().begin(), model.ends().end(),
                       [](const End& end) { return (end.excuses & kKept) != 0; });
}

std::vector<std::string> World::state() const {
    std::vector<std::string> lines;
    for (const auto& channel : channels_) {
        for (const End* end : channel->lives) {
            std::string line = fmt::format("{}: {} receives", end->name, end->receives.size());
            for (const Lane& lane : end->lanes) {
                line += fmt::format(", {} sends", lane.sends.size());
                if (!lane.sends.empty()) {
                    line +=
                        fmt::format(" from {:#x} ({})", lane.sends.front().tag, opcode_name(lane.sends.front().opcode));
                }
            }
            lines.push_back(line + "; causes: " + causes(end->excuses));
        }
    }
    return lines;
}

}  // namespace pollcore::sim
