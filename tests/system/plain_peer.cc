// A peer of pollcored's echo service that uses only librdmacm and libibverbs, with the synchronous calls of simple
// programs. It shows that pollcored serves peers that know nothing of pollcore, even if they misbehave.
//
//   plain_peer [--bind ADDRESS] ADDRESS PORT echo COUNT SIZE_MAX  messages of 0 to SIZE_MAX bytes, there and back
//   plain_peer [--bind ADDRESS] ADDRESS PORT too-long SIZE        one message that is too long for the service
//   plain_peer [--bind ADDRESS] ADDRESS PORT stall COUNT          sends, takes one answer, waits to be disconnected
//
// Exit codes: 0 all as expected; 1 not as expected, with the reason on stderr; 2 usage.
#include <arpa/inet.h>
#include <netdb.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>

namespace {

constexpr int kTimeoutMs = 5000;
constexpr std::uint32_t kDepth = 16;

void require(bool condition, const std::string& what) {
    if (!condition) {
        throw std::runtime_error(what);
    }
}
void require_call(int result, const char* what) {
    require(result == 0, std::string(what) + ": " + std::strerror(errno));
}

// A connected queue pair with a buffer of `size_max` bytes for each direction.
class Connection {
public:
    Connection(const char* bind_to, const char* address, const char* port, std::size_t size_max)
        : buffer_(2 * (size_max + 1)), half_(size_max + 1) {
        require_call(rdma_create_id(nullptr, &id_, nullptr, RDMA_PS_TCP), "rdma_create_id");
        addrinfo* to = resolve(address, port);
        addrinfo* from = bind_to != nullptr ? resolve(bind_to, nullptr) : nullptr;
        require_call(rdma_resolve_addr(id_, from != nullptr ? from->ai_addr : nullptr, to->ai_addr, kTimeoutMs),
                     "rdma_resolve_addr");
        freeaddrinfo(to);
        if (from != nullptr) {
            freeaddrinfo(from);
        }
        require_call(rdma_resolve_route(id_, kTimeoutMs), "rdma_resolve_route");
        ibv_qp_init_attr attributes{};
        attributes.qp_type = IBV_QPT_RC;
        attributes.cap = {
            .max_send_wr = kDepth, .max_recv_wr = kDepth, .max_send_sge = 1, .max_recv_sge = 1, .max_inline_data = 0};
        attributes.sq_sig_all = 1;
        require_call(rdma_create_qp(id_, nullptr, &attributes), "rdma_create_qp");
        region_ = rdma_reg_msgs(id_, buffer_.data(), buffer_.size());
        require(region_ != nullptr, std::string("rdma_reg_msgs: ") + std::strerror(errno));
    }
    ~Connection() {
        rdma_disconnect(id_);
        rdma_destroy_qp(id_);
        if (region_ != nullptr) {
            rdma_dereg_mr(region_);
        }
        rdma_destroy_id(id_);
    }
    Connection(const Connection&) = delete;
    Connection& operator=(const Connection&) = delete;

    /// Connects with private data that means nothing to pollcored. Checks the documented bytes of the service's answer.
    void connect() {
        static const char greeting[] = "a plain verbs peer";
        rdma_conn_param parameters{};
        parameters.private_data = greeting;
        parameters.private_data_len = sizeof(greeting);
        parameters.responder_resources = 1;
        parameters.initiator_depth = 1;
        parameters.retry_count = 6;
        parameters.rnr_retry_count = 7;
        require_call(rdma_connect(id_, &parameters), "rdma_connect");
        require(id_->event != nullptr, "no event after rdma_connect");
        const rdma_conn_param& answer = id_->event->param.conn;
        const auto* bytes = static_cast<const char*>(answer.private_data);
        // Four bytes of pollcore's framing, then the offer, which begins with a readable magic.
        require(answer.private_data_len >= 24 && std::memcmp(bytes + 4, "pech", 4) == 0,
                "the answer is not that of an echo service");
    }

    char* out() { return buffer_.data(); }
    char* in() { return buffer_.data() + half_; }

    void post_receive() { require_call(rdma_post_recv(id_, nullptr, in(), half_, region_), "rdma_post_recv"); }
    void send(std::uint32_t length, const std::uint32_t* imm) {
        ibv_sge sge{.addr = reinterpret_cast<std::uintptr_t>(out()), .length = length, .lkey = region_->lkey};
        ibv_send_wr work{};
        work.sg_list = &sge;
        work.num_sge = length > 0 ? 1 : 0;
        work.opcode = imm != nullptr ? IBV_WR_SEND_WITH_IMM : IBV_WR_SEND;
        work.imm_data = imm != nullptr ? htonl(*imm) : 0;
        ibv_send_wr* bad = nullptr;
        require_call(errno = ibv_post_send(id_->qp, &work, &bad), "ibv_post_send");
    }
    ibv_wc sent() { return completion(&rdma_get_send_comp, "rdma_get_send_comp"); }
    ibv_wc received() { return completion(&rdma_get_recv_comp, "rdma_get_recv_comp"); }

    void await_disconnect() {
        rdma_cm_event* event = nullptr;
        require_call(rdma_get_cm_event(id_->channel, &event), "rdma_get_cm_event");
        const rdma_cm_event_type type = event->event;
        rdma_ack_cm_event(event);
        require(type == RDMA_CM_EVENT_DISCONNECTED, std::string("not disconnected, but ") + rdma_event_str(type));
    }

private:
    static addrinfo* resolve(const char* address, const char* port) {
        addrinfo hints{};
        hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
        addrinfo* found = nullptr;
        const int error = getaddrinfo(address, port, &hints, &found);
        require(error == 0, std::string(address) + ": " + gai_strerror(error));
        return found;
    }
    ibv_wc completion(int (*get)(rdma_cm_id*, ibv_wc*), const char* what) {
        ibv_wc wc{};
        require(get(id_, &wc) == 1, std::string(what) + ": " + std::strerror(errno));
        return wc;
    }

    rdma_cm_id* id_ = nullptr;
    ibv_mr* region_ = nullptr;
    std::vector<char> buffer_;
    std::size_t half_;
};

void echo(Connection& connection, std::uint32_t count, std::uint32_t size_max) {
    for (std::uint32_t i = 0; i < count; ++i) {
        // From 0 to size_max, whatever the count is.
        const auto length = static_cast<std::uint32_t>(std::uint64_t{i} * size_max / std::max(count - 1, 1u));
        for (std::uint32_t k = 0; k < length; ++k) {
            connection.out()[k] = static_cast<char>(i + 3 * k);
            connection.in()[k] = 0;
        }
        const bool with_imm = i % 2 == 1;
        connection.post_receive();
        if (i == 0) {
            connection.connect();
        }
        connection.send(length, with_imm ? &i : nullptr);
        require(connection.sent().status == IBV_WC_SUCCESS, "a send failed");
        const ibv_wc wc = connection.received();
        const std::string message = "message " + std::to_string(i);
        require(wc.status == IBV_WC_SUCCESS, message + ": " + ibv_wc_status_str(wc.status));
        require(wc.byte_len == length, message + ": came back with " + std::to_string(wc.byte_len) + " bytes");
        require(((wc.wc_flags & IBV_WC_WITH_IMM) != 0) == with_imm, message + ": immediate data came or went");
        require(!with_imm || ntohl(wc.imm_data) == i, message + ": another immediate");
        require(std::memcmp(connection.out(), connection.in(), length) == 0, message + ": other bytes");
    }
}

void too_long(Connection& connection, std::uint32_t size) {
    connection.post_receive();
    connection.connect();
    connection.send(size, nullptr);
    require(connection.sent().status != IBV_WC_SUCCESS, "the service took it");
}

void stall(Connection& connection, std::uint32_t count) {
    connection.post_receive();  // for the first answer; when it arrives, the service has begun to answer
    connection.connect();
    for (std::uint32_t i = 0; i < count; ++i) {
        connection.send(1, nullptr);
        require(connection.sent().status == IBV_WC_SUCCESS, "a send failed");
    }
    require(connection.received().status == IBV_WC_SUCCESS, "nothing came back");
    std::puts("stalled");
    std::fflush(stdout);
    connection.await_disconnect();
}

std::uint32_t number(const char* text) {
    return static_cast<std::uint32_t>(std::strtoul(text, nullptr, 10));
}

}  // namespace

int main(int argc, char** argv) {
    const char* bind_to = nullptr;
    if (argc > 2 && std::strcmp(argv[1], "--bind") == 0) {
        bind_to = argv[2];
        argv += 2;
        argc -= 2;
    }
    const std::string what = argc > 4 ? argv[3] : "";
    const bool known = (what == "echo" && argc == 6) || ((what == "too-long" || what == "stall") && argc == 5);
    if (!known) {
        std::fprintf(stderr,
                     "usage: plain_peer [--bind ADDRESS] ADDRESS PORT echo COUNT SIZE_MAX | too-long SIZE | "
                     "stall COUNT\n");
        return 2;
    }
    try {
        const std::uint32_t amount = number(argv[4]);
        const std::uint32_t size_max = what == "echo" ? number(argv[5]) : what == "too-long" ? amount : 1;
        Connection connection(bind_to, argv[1], argv[2], size_max);
        if (what == "echo") {
            echo(connection, amount, size_max);
        } else if (what == "too-long") {
            too_long(connection, amount);
        } else {
            stall(connection, amount);
        }
        return 0;
    } catch (const std::exception& error) {
        std::fprintf(stderr, "plain_peer %s: %s\n", what.c_str(), error.what());
        return 1;
    }
}
