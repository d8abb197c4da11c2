// The daemon's side of attaching. Connections works on its own threads, and Clients on the control thread.
#include "pollcore/attach_server.hpp"

#include "attach/clients.hpp"
#include "attach/connections.hpp"
#include "base/log.hpp"
#include "base/thread_health.hpp"

namespace pollcore {

class AttachServer::Server {
public:
    Server(RuntimeState& state, const AttachConfig& config)
        : runtime(state),
          connections(config, runtime.config.qps_max,
                      {.hear = [this](Heard&& heard) { clients.hear(std::move(heard)); },
                       .due = [this] { clients.look(); },
                       .attached = [this] { return std::size_t{clients.counts().now}; }}),
          clients(runtime, connections) {
        connections.start();
    }
    ~Server() { connections.stop(); }
    Server(const Server&) = delete;
    Server& operator=(const Server&) = delete;

    RuntimeState& runtime;
    Connections connections;
    Clients clients;
};

AttachServer::AttachServer(Runtime& runtime, const AttachConfig& config)
    : server_(std::make_unique<Server>(runtime.state(), config)) {}

AttachServer::~AttachServer() {
    if (server_->runtime.is_forked()) {
        (void)server_.release();  // a forked child does not inherit the server's threads
        return;
    }
    try {
        (void)stop(server_->runtime.config.drain_timeout);
    } catch (const std::exception& error) {
        log_error("attach server: {}", error.what());
    }
}

bool AttachServer::stop(std::chrono::milliseconds drain) {
    require_own_process(server_->runtime);
    server_->connections.close();
    return server_->clients.stop(drain);
}

void AttachServer::configure(const AttachConfig& config) {
    server_->connections.configure(config);
}
ThreadHealth AttachServer::health() const {
    return thread_health("pollcore-serve", ThreadHealth::Kind::serve, server_->connections.heartbeat(),
                         steady_ns(std::chrono::steady_clock::now()));
}
void AttachServer::pause() noexcept {
    server_->connections.pause(true);
}
void AttachServer::resume() noexcept {
    server_->connections.pause(false);
}
bool AttachServer::paused() const noexcept {
    return server_->connections.paused();
}
std::vector<AttachedProcess> AttachServer::processes() const {
    require_own_process(server_->runtime);
    return server_->clients.processes();
}
bool AttachServer::disconnect(std::uint32_t process, const std::string& reason, std::chrono::milliseconds grace) {
    require_own_process(server_->runtime);
    return server_->clients.disconnect(process, reason, grace);
}
AttachCounts AttachServer::counts() const {
    return server_->clients.counts();
}

}  // namespace pollcore
