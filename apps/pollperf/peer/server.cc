#include "pollperf/peer/server.hpp"

#include <signal.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "base/log.hpp"
#include "pollcore/error.hpp"
#include "pollperf/measure/path_run.hpp"
#include "pollperf/peer/control_channel.hpp"
#include "pollperf/peer/letters.hpp"
#include "pollperf/place.hpp"
#include "pollperf/report/disturbances.hpp"

namespace pollcore::perf {
namespace {

using Json = nlohmann::json;

// A client that has connected says at once what it is.
constexpr std::chrono::milliseconds kHelloTime{5000};
constexpr std::chrono::milliseconds kConnectTime{30'000};
// The server waits for its client without a limit: a lost client is noticed on the control channel.
constexpr std::chrono::hours kNoLimit{24};
// A client gets no more memory for all its paths.
constexpr std::uint64_t kBytesMost = 16ull << 30;

/// The server's ends of one path of one client, and the thread that serves them.
class ServedPath {
public:
    /// `gone` becomes true when the measuring threads have to give up whatever they wait for.
    ServedPath(std::unique_ptr<PathRun> run, const ConnectionPlan& plan, std::shared_ptr<std::atomic<bool>> gone)
        : run_(std::move(run)), plan_(plan), gone_(std::move(gone)) {}
    ~ServedPath() { end(); }

    [[nodiscard]] PathRun& run() noexcept { return *run_; }
    [[nodiscard]] const ConnectionPlan& plan() const noexcept { return plan_; }
    [[nodiscard]] std::size_t ends() const noexcept { return std::size_t{plan_.threads} * plan_.connections; }

    void accept(std::vector<std::byte> token) {
        start([this, token = std::move(token)] { run_->accept_all(token, kConnectTime); });
    }
    void await_accepted() { join(); }
    void set_connected() noexcept { stage_ = Stage::connected; }

    void begin(const Workload& workload) {
        demand(stage_ != Stage::opened);
        workload_ = workload;
        run_->begin(workload, std::nullopt);
        stage_ = Stage::begun;
    }
    /// Throws if no workload has begun.
    void demand_begun() const { demand(stage_ == Stage::begun); }

    void serve(const std::optional<Until>& sends) {
        demand_begun();
        demand(!sends || (workload_.one_sided && workload_.bidirectional));
        sent_ = !sends;
        start([this, sends] {
            sends ? run_->round(*sends,
                                [this] {
                                    const std::lock_guard lock(mutex_);
                                    sent_ = true;
                                    changed_.notify_all();
                                })
                  : run_->serve();
        });
    }
    /// Returns false if the path has not sent all within `time`.
    [[nodiscard]] bool await_sent(std::chrono::milliseconds time) {
        std::unique_lock lock(mutex_);
        changed_.wait_for(lock, time, [this] { return sent_ || ended_; });
        return sent_ || ended_;
    }
    /// Throws what the serving thread has thrown, if it has ended.
    void look() {
        {
            const std::lock_guard lock(mutex_);
            if (!ended_ || !failure_) {
                return;
            }
        }
        join();
    }
    void stop() {
        run_->stop_serving();
        join();
    }
    /// Throws if a thread is at work on the path.
    void demand_rest() const {
        if (thread_.joinable()) {
            throw MeasurementError("the client asks for something while the path is at work");
        }
    }
    /// Ends the thread, if one is at work, and the connections.
    void close() {
        end();
        run_->disconnect(std::chrono::milliseconds(1000));
    }

private:
    template <class Work>
    void start(Work work) {
        demand_rest();
        ended_ = false;
        failure_ = nullptr;
        thread_ = std::thread([this, work = std::move(work)] {
            std::exception_ptr failure;
            try {
                work();
            } catch (...) {
                failure = std::current_exception();
            }
            const std::lock_guard lock(mutex_);
            ended_ = true;
            failure_ = failure;
            changed_.notify_all();
        });
    }
    void join() {
        if (thread_.joinable()) {
            thread_.join();
        }
        if (failure_) {
            std::rethrow_exception(std::exchange(failure_, nullptr));
        }
    }
    static void demand(bool holds) {
        if (!holds) {
            throw MeasurementError("the client asks for something that is not its turn");
        }
    }
    void end() noexcept {
        gone_->store(true, std::memory_order_relaxed);  // relaxed: it publishes no other data
        run_->stop_serving();
        if (thread_.joinable()) {
            thread_.join();
        }
    }

    enum class Stage { opened, connected, begun };

    std::unique_ptr<PathRun> run_;
    ConnectionPlan plan_;
    std::shared_ptr<std::atomic<bool>> gone_;
    Stage stage_ = Stage::opened;
    Workload workload_;
    std::mutex mutex_;
    std::condition_variable changed_;
    bool sent_ = true;
    bool ended_ = true;
    std::exception_ptr failure_;
    std::thread thread_;
};

/// One client, from its first message to its last.
class ServedClient {
public:
    /// `place_number`: how many other clients there are.
    ServedClient(Socket socket, const ServeOptions& options, std::shared_ptr<OwnRuntime> runtime,
                 std::size_t place_number)
        : options_(options),
          place_number_(place_number),
          channel_(std::move(socket)),
          place_(options, std::move(runtime)) {}

    /// Returns when the client has left. Throws if a measurement has failed.
    void serve(const std::atomic<bool>& stop) {
        try {
            hello();
            while (!stop.load(std::memory_order_relaxed)) {
                std::optional<Json> request;
                try {
                    request = channel_.try_receive(std::chrono::milliseconds(200));
                } catch (const MeasurementError&) {
                    if (std::none_of(paths_.begin(), paths_.end(), [](const auto& path) { return path != nullptr; })) {
                        return;  // a client leaves without a word when it has closed its paths
                    }
                    throw;
                }
                for (const auto& path : paths_) {
                    if (path) {
                        path->look();
                    }
                }
                if (request) {
                    channel_.send(answer(*request));
                }
            }
        } catch (const std::exception& error) {
            try {
                channel_.send({{"error", error.what()}});
            } catch (const std::exception&) {
                // The client has left; `error` says more.
            }
            throw;
        }
    }

    [[nodiscard]] std::string peer() const { return channel_.peer_address(); }
    /// Whether the peer has said that it is a client of this version.
    [[nodiscard]] bool greeted() const noexcept { return greeted_; }

private:
    void hello() {
        const Json hello = channel_.receive(kHelloTime);
        if (read_text(hello, "do") != "hello") {
            throw MeasurementError("the client does not speak as pollperf does");
        }
        if (read_any(hello, "pollperf") != kProtocol) {
            throw MeasurementError(
                fmt::format("client and server are of versions that do not speak with each other "
                            "(this protocol is {})",
                            kProtocol));
        }
        greeted_ = true;
        place_.prefer_address(channel_.own_address());
        channel_.send({{"host", to_json(host_facts())}});
    }

    Json answer(const Json& request) {
        const std::string what = read_text(request, "do");
        if (what == "open") {
            return open(request);
        }
        ServedPath& path = path_of(request);
        if (what == "connect" || what == "listen" || what == "begin" || what == "count") {
            path.demand_rest();
        }
        if (what == "connect") {
            path.run().connect(read_ends(read_any(request, "ends"), path.ends()));
            path.set_connected();
            return ok();
        }
        if (what == "listen") {
            return listen(path, request);
        }
        if (what == "accepted") {
            path.await_accepted();
            path.run().set_remote(read_ends(read_any(request, "ends"), path.ends()));
            path.set_connected();
            return ok();
        }
        if (what == "begin") {
            begin(path, request);
            return ok();
        }
        if (what == "start") {
            path.serve(request.contains("until") ? std::optional(read_until(request["until"])) : std::nullopt);
            return ok();
        }
        if (what == "await") {
            const bool sent = path.await_sent(std::chrono::milliseconds(200));
            path.look();
            return {{"ok", true}, {"sent", sent}};
        }
        if (what == "stop") {
            path.stop();
            const Measurement sent = path.run().result();
            return {{"ok", true}, {"operations", sent.operations}, {"seconds", sent.seconds}};
        }
        if (what == "count") {
            path.demand_begun();
            const auto posted = read_counts(request, "posted", path.ends());
            return {{"ok", true}, {"arrived", path.run().arrived(posted)}, {"posted", path.run().posted()}};
        }
        if (what == "close") {
            path.close();
            paths_[request["id"].get<std::size_t>()].reset();
            return ok();
        }
        throw MeasurementError("the client asks for something that this server does not know");
    }

    [[nodiscard]] static Json ok() { return {{"ok", true}}; }

    Json open(const Json& request) {
        constexpr std::size_t kPathsMost = 16;
        if (paths_.size() == kPathsMost) {
            throw MeasurementError(fmt::format("a client has at most {} paths", kPathsMost));
        }
        const PathKind path = options_.path.value_or(read_path(request));
        if (has_worker(path) && options_.workers.empty()) {
            throw MeasurementError(
                fmt::format("path {} needs two CPUs, and this server has one; start it with --path "
                            "direct, or with --wait yield",
                            path_name(path)));
        }
        const ConnectionPlan plan = read_connection_plan(read_any(request, "plan"));
        if (plan.flow != FlowControl::off && !has_worker(path)) {
            throw MeasurementError("this server has plain verbs, which have no flow control");
        }
        if (has_worker(path) && options_.wait == Waiting::sleep && plan.sessions > 1) {
            throw MeasurementError("this server's threads sleep, each on one session: use one session for each thread");
        }
        bytes_ += plan.bytes();
        if (bytes_ > kBytesMost) {
            throw MeasurementError(fmt::format("the client's paths take more than {} MiB together", kBytesMost >> 20));
        }
        const auto gone = std::make_shared<std::atomic<bool>>(false);
        PathPlan of_path{.role = Role::server,
                         .connections = plan.connections,
                         .cores = cores_for(plan.threads),
                         .timeout = kNoLimit,
                         .look_about = [gone] {
                             if (gone->load(std::memory_order_relaxed)) {
                                 throw MeasurementError("the client has left");
                             }
                         }};
        auto run = place_.make(path, plan.setup(1), std::move(of_path));
        const Json ends = to_json(run->own_ends());
        paths_.push_back(std::make_unique<ServedPath>(std::move(run), plan, gone));
        return {{"ok", true},
                {"id", paths_.size() - 1},
                {"path", path_name(path)},
                {"mtu", place_.port_mtu(path)},
                {"device", place_.device()},
                {"ends", ends}};
    }

    // The server's own CPUs, and then those that are no worker's. Several clients begin at different ones.
    [[nodiscard]] std::vector<std::uint32_t> cores_for(std::uint32_t threads) const {
        std::vector<std::uint32_t> order = options_.cores;
        for (const std::uint32_t cpu : config::Cpus::of_this_process().allowed) {
            const auto& workers = options_.config.workers;
            const bool taken =
                std::find(order.begin(), order.end(), cpu) != order.end() ||
                std::any_of(workers.begin(), workers.end(), [&](const WorkerConfig& one) { return one.core == cpu; });
            if (!taken) {
                order.push_back(cpu);
            }
        }
        std::vector<std::uint32_t> cores;
        for (std::uint32_t thread = 0; thread < threads; ++thread) {
            cores.push_back(order[(place_number_ + thread) % order.size()]);
        }
        return cores;
    }

    Json listen(ServedPath& path, const Json& request) {
        const auto numbers = read_counts(request, "token", 16);
        std::vector<std::byte> token;
        for (const std::uint64_t number : numbers) {
            token.push_back(static_cast<std::byte>(number & 0xff));
        }
        const std::string own = channel_.own_address();
        std::vector<std::string> wanted;
        for (std::uint32_t thread = 0; thread < path.plan().threads; ++thread) {
            // On a software device an address is a word that nobody else uses.
            static std::atomic<unsigned> count{0};
            wanted.push_back(options_.software()                  ? fmt::format("pollperf-{}-{}", ::getpid(), ++count)
                             : own.find(':') != std::string::npos ? fmt::format("[{}]:0", own)
                                                                  : own + ":0");
        }
        const auto addresses = path.run().listen(wanted);
        path.accept(std::move(token));
        return {{"ok", true}, {"addresses", addresses}};
    }

    void begin(ServedPath& path, const Json& request) {
        Workload workload = read_workload(read_any(request, "workload"), path.plan());
        workload.inlined = !is_answered(workload.op) && workload.size <= place_.inline_most(path.run().kind());
        if (workload.buffer_reused() && !workload.one_sided) {
            workload.signal_every = 1;  // the client's messages may be inline where this end's are not
        }
        path.begin(workload);
    }

    ServedPath& path_of(const Json& request) {
        const auto id = read_number<std::size_t>(request, "id", 0, 1000);
        if (id >= paths_.size() || !paths_[id]) {
            throw MeasurementError("the client names a path that it has not opened");
        }
        return *paths_[id];
    }

    const ServeOptions& options_;
    const std::size_t place_number_;
    std::uint64_t bytes_ = 0;  ///< of all paths
    ControlChannel channel_;
    Place place_;
    bool greeted_ = false;
    std::vector<std::unique_ptr<ServedPath>> paths_;
};

/// SIGINT and SIGTERM as a descriptor. They are blocked in all threads that are made later.
class StopSignals {
public:
    StopSignals() {
        sigset_t signals;
        sigemptyset(&signals);
        sigaddset(&signals, SIGINT);
        sigaddset(&signals, SIGTERM);
        ::pthread_sigmask(SIG_BLOCK, &signals, nullptr);
        socket_ = Socket(::signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK));
        if (socket_.get() < 0) {
            throw Error(errno, "asking for signals as a descriptor");
        }
    }
    [[nodiscard]] int fd() const noexcept { return socket_.get(); }

private:
    Socket socket_;
};

/// The clients that are served now.
class Clients {
public:
    explicit Clients(const ServeOptions& options) : options_(options), runtime_(std::make_shared<OwnRuntime>()) {}
    ~Clients() {
        stop_.store(true, std::memory_order_relaxed);
        for (One& one : all_) {
            one.thread.join();
        }
    }

    void add(Socket socket) {
        const std::size_t others = all_.size();
        One& one = all_.emplace_back();
        one.thread = std::thread(
            [this, &one, others, socket = std::move(socket)]() mutable { serve(one, std::move(socket), others); });
    }
    /// Waits until fewer than `most` are served, or a signal has come. Returns whether that is so.
    [[nodiscard]] bool await_fewer(std::size_t most, int stop) {
        for (;;) {
            {
                std::unique_lock lock(mutex_);
                changed_.wait_for(lock, std::chrono::milliseconds(100));
                for (auto one = all_.begin(); one != all_.end();) {
                    if (one->ended) {
                        one->thread.join();
                        one = all_.erase(one);
                    } else {
                        ++one;
                    }
                }
                if (all_.size() < most) {
                    return true;
                }
            }
            signalfd_siginfo signal{};
            if (::read(stop, &signal, sizeof signal) > 0) {
                return false;
            }
        }
    }
    /// Why the client that has left last could not measure. Empty: it could. Nothing: what came was no client.
    [[nodiscard]] const std::optional<std::string>& failure() const noexcept { return failure_; }

private:
    struct One {
        std::thread thread;
        bool ended = false;
    };

    void serve(One& one, Socket socket, std::size_t others) noexcept {
        std::string peer = "a client";
        std::optional<std::string> failure;
        std::optional<ServedClient> client;
        try {
            client.emplace(std::move(socket), options_, runtime_, others);
            peer = client->peer();
            fmt::print(stderr, "pollperf: serves {}\n", peer);
            client->serve(stop_);
            fmt::print(stderr, "pollperf: {} has left\n", peer);
            failure = client->greeted() ? std::optional<std::string>("") : std::nullopt;
        } catch (const std::exception& error) {
            fmt::print(stderr, "pollperf: {}: {}\n", peer, error.what());
            failure = client && client->greeted() ? std::optional<std::string>(error.what()) : std::nullopt;
        }
        client.reset();
        const std::lock_guard lock(mutex_);
        failure_ = failure;
        one.ended = true;
        changed_.notify_all();
    }

    const ServeOptions& options_;
    std::shared_ptr<OwnRuntime> runtime_;
    std::atomic<bool> stop_{false};
    std::mutex mutex_;
    std::condition_variable changed_;
    std::list<One> all_;
    std::optional<std::string> failure_;
};

}  // namespace

void run_server(const ServeOptions& options) {
    set_log_level(options.config.log_level);
    const StopSignals signals;
    ControlListener listener(options.port);
    Clients clients(options);
    fmt::print(stderr, "pollperf: waiting for a client at TCP port {}\n", listener.port());
    constexpr std::chrono::hours kForEver{24 * 365};
    for (;;) {
        auto socket = listener.accept(signals.fd(), options.once ? options.client_timeout : kForEver);
        if (!socket) {
            if (options.once) {
                throw MeasurementError(fmt::format("no client came to port {} within {} ms (--client-timeout)",
                                                   listener.port(), options.client_timeout.count()));
            }
            return;
        }
        clients.add(std::move(*socket));
        if (!clients.await_fewer(options.once ? 1 : options.clients, signals.fd())) {
            return;
        }
        if (options.once && clients.failure()) {
            if (!clients.failure()->empty()) {
                throw MeasurementError(*clients.failure());
            }
            return;
        }
    }
}

}  // namespace pollcore::perf
